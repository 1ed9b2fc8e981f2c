package iofault

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/lab/diff"
	"github.com/lanefs/lanefs/lab/internal/image"
)

// Layout is a kind of volume, how it is aged and how it is mounted.
type Layout struct {
	Name    string
	Size    string   // as mke2fs takes it
	Args    []string // of mkfs.ext4
	Block   int      // bytes of the volume's blocks
	LBA     int64    // bytes of the device's blocks
	Pieces  bool     // no two free blocks are adjacent
	Free    int      // blocks that are left free; 0: all
	Sparse  bool     // only a part of the free space is filled: the image is large
	Discard bool
	Maps    bool // files have block maps: no fallocate
	Members int  // of the md array that the volume is on; 0: it is on none
}

// Layouts are the volumes of a campaign. Journals are as small as mkfs makes them, 1,024 blocks.
var Layouts = []Layout{
	{Name: "pieces", Size: "6M", Block: 1024, LBA: 512, Pieces: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "600", "-O", "metadata_csum_seed,orphan_file"}},
	{Name: "small", Size: "6M", Block: 1024, LBA: 512,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "600"}},
	{Name: "full", Size: "6M", Block: 1024, LBA: 512, Pieces: true, Free: 300,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "600", "-m", "0"}},
	{Name: "large", Size: "200M", Block: 1024, LBA: 512, Sparse: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "4000", "-O", "orphan_file", "-E", "lazy_itable_init=1,nodiscard"}},
	{Name: "4kn", Size: "20M", Block: 4096, LBA: 4096, Pieces: true, Discard: true,
		Args: []string{"-b", "4096", "-J", "size=4", "-N", "600"}},
	{Name: "ext3", Size: "6M", Block: 1024, LBA: 1024, Pieces: true, Maps: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "600", "-O", "^extent,^64bit,^metadata_csum,^flex_bg"}},
	{Name: "groups", Size: "8M", Block: 1024, LBA: 512, Discard: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "800", "-g", "1024", "-O", "^metadata_csum,uninit_bg"}},
	{Name: "inline", Size: "6M", Block: 1024, LBA: 512, Pieces: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "600", "-O", "inline_data"}},
	{Name: "array", Size: "6M", Block: 1024, LBA: 512, Pieces: true, Discard: true, Members: 3,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "600"}},
}

func layoutNamed(name string) (*Layout, error) {
	var names []string
	for k := range Layouts {
		if Layouts[k].Name == name {
			return &Layouts[k], nil
		}
		names = append(names, Layouts[k].Name)
	}
	return nil, fmt.Errorf("layout %q: there are %s", name, strings.Join(names, ", "))
}

// make makes an aged volume of the layout and returns its medium.
func (l *Layout) make(dir string) (*medium, error) {
	path := filepath.Join(dir, "layout-"+l.Name)
	defer os.Remove(path)
	if err := image.Make(path, l.Size, l.Args...); err != nil {
		return nil, err
	}
	if err := image.FillFree(path, l.Block, func(n int64, b []byte) bool {
		diff.Fill(b, garbage, n*int64(l.Block))
		return !l.Sparse || n%8192 <= 800
	}); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := readMedium(f, l.LBA)
	if err != nil {
		return nil, err
	}
	return l.age(m)
}

// garbage is the seed of the pattern in free blocks.
const garbage = 0xdead0001

// filler is the name of a file that takes up space. No operation changes it.
const filler = "filler"

// age breaks the free space into pieces: two files allocate blocks by turns, and one of them is removed.
func (l *Layout) age(m *medium) (*medium, error) {
	dev := m.device()
	defer dev.Close()
	v, err := ext4.Open(dev, ext4.Options{})
	if err != nil {
		return nil, err
	}
	if err := l.ageVolume(v); err != nil {
		v.Close()
		return nil, fmt.Errorf("aging: %w", err)
	}
	if err := v.Close(); err != nil {
		return nil, err
	}
	return readMedium(dev.File(), l.LBA)
}

func (l *Layout) ageVolume(v *ext4.FS) error {
	root, err := v.Root()
	if err != nil {
		return err
	}
	defer root.Put()
	// A directory with an index, some of whose blocks are nearly full.
	d, err := root.Mkdir("d", 0o755, 0, 0)
	if err != nil {
		return err
	}
	defer d.Put()
	for k := range indexedNames {
		if err := put(d.Create(strings.TrimPrefix(indexedName(k), "d/"), unix.S_IFREG|0o644, 0, 0, 0, 0)); err != nil {
			return err
		}
	}
	if !l.Pieces {
		return nil
	}
	keep, err := root.Create(filler, unix.S_IFREG|0o600, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	defer keep.Put()
	gone, err := root.Create("gone", unix.S_IFREG|0o600, 0, 0, 0, 0)
	if err != nil {
		return err
	}
	defer gone.Put()
	bs := int64(v.BlockSize())
	free := int64(v.Statfs().BlocksFree)
	size := free * bs
	for _, f := range []*ext4.Inode{keep, gone} {
		if _, err := f.SetAttr(ext4.SetAttr{Size: &size}); err != nil {
			return err
		}
	}
	b := make([]byte, bs)
	for k := int64(0); v.Statfs().BlocksAvail > 40; k++ {
		f, seed := keep, uint32(garbage+1)
		if k%2 == 1 && (l.Free == 0 || k < 2*int64(l.Free)) {
			f, seed = gone, garbage+2
		}
		diff.Fill(b, seed, k*bs)
		if _, err := f.Write(k*bs, b); err != nil {
			return err
		}
	}
	return root.Unlink("gone")
}
