package dir

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestHash compares hashes with debugfs's.
func TestHash(t *testing.T) {
	img := disktest.Make(t, "8M")
	names := []string{"a", "abc", "abcd", "Makefile", "na\xefve", "\xff\xfe\x80", strings.Repeat("0123456789", 2),
		strings.Repeat("x", 31), strings.Repeat("x", 32), strings.Repeat("yz", 100), strings.Repeat("\xe9", 255)}
	var want [][2]uint32
	var cmds []string
	for _, v := range []struct {
		name string
		h    Hash
	}{
		{"0", Hash{Version: HashLegacy}}, {"3", Hash{Version: HashLegacy, Unsigned: true}},
		{"1", Hash{Version: HashHalfMD4}}, {"4", Hash{Version: HashHalfMD4, Unsigned: true}},
		{"2", Hash{Version: HashTEA}}, {"5", Hash{Version: HashTEA, Unsigned: true}},
	} {
		for seed, words := range map[string][4]uint32{ // none is none; without -s newer versions take the volume's
			"00000000-0000-0000-0000-000000000000": {}, "01020304-0506-0708-090a-0b0c0d0e0f10": {0x04030201, 0x08070605, 0x0c0b0a09, 0x100f0e0d},
		} {
			v.h.Seed = words
			for _, n := range names {
				cmds = append(cmds, fmt.Sprintf("dx_hash -h %s -s %s %s", v.name, seed, n))
				major, minor := v.h.Sum(n)
				want = append(want, [2]uint32{major, minor})
			}
		}
	}
	out := disktest.Debugfs(t, img, cmds...)
	found := regexp.MustCompile(`(?m)is (0x[0-9a-f]+) \(minor (0x[0-9a-f]+)\)`).FindAllStringSubmatch(out, -1)
	require.Len(t, found, len(want), out)
	for i, f := range found {
		var got [2]uint32
		_, err := fmt.Sscanf(f[1]+" "+f[2], "0x%x 0x%x", &got[0], &got[1])
		require.NoError(t, err)
		require.Equal(t, got, want[i], "%s", cmds[i])
	}
}

// imageStore is a directory of an image file.
type imageStore struct {
	m   *disktest.Image
	ino uint32
	n   disk.Inode
	at  []uint64
}

type imageBlock struct {
	no   uint64
	data []byte
}

func (b *imageBlock) Data() []byte      { return b.data }
func (b *imageBlock) Block() disk.Block { return disk.Block(b.no) }
func (b *imageBlock) Verified() bool    { return false }
func (b *imageBlock) SetVerified()      {}
func (b *imageBlock) Put()              {}

func (s *imageStore) Blocks() uint32    { return uint32(len(s.at)) }
func (s *imageStore) Indexed() bool     { return s.n.Flags&disk.FlIndex != 0 }
func (s *imageStore) SetIndexed()       { panic("an image's directory gets no index here") }
func (s *imageStore) Damaged(err error) { panic(err) }
func (s *imageStore) Get(lblk uint32) (Block, error) {
	return &imageBlock{s.at[lblk], s.m.Block(s.at[lblk])}, nil
}
func (s *imageStore) Append() (uint32, Block, error) { return 0, nil, errNoSpace }
func (s *imageStore) Change(Block)                   {}
func (s *imageStore) Dirty(b Block)                  { s.m.SetBlock(b.(*imageBlock).no, b.Data()) }

func openDir(t testing.TB, m *disktest.Image, ino uint32) (*Dir, *imageStore) {
	t.Helper()
	n, _ := m.Inode(ino)
	d, err := New(m.Superblock, ino, &n)
	require.NoError(t, err)
	return d, &imageStore{m: m, ino: ino, n: n, at: m.Map(ino, &n)}
}

var images = map[string]struct {
	args  []string
	names int
	pad   int
}{
	"default":  {[]string{"-O", "metadata_csum_seed,orphan_file", "-b", "4096"}, 12000, 0},
	"1k":       {[]string{"-b", "1024"}, 6000, 0},
	"1k long":  {[]string{"-b", "1024", "-O", "large_dir"}, 1500, 240},
	"nocsum":   {[]string{"-b", "1024", "-O", "^metadata_csum"}, 6000, 0},
	"noindex":  {[]string{"-b", "1024", "-O", "^dir_index"}, 500, 0},
	"notype":   {[]string{"-b", "2048", "-O", "^filetype"}, 3000, 0},
	"ext2":     {[]string{"-b", "1024", "-O", "^has_journal,^extent,^64bit,^metadata_csum,^flex_bg"}, 3000, 0},
	"unsigned": {[]string{"-b", "1024"}, 3000, 0},
	"tea":      {[]string{"-b", "1024"}, 3000, 0},
	"legacy":   {[]string{"-b", "1024"}, 3000, 0},
}

func makeImage(t *testing.T, name string) string {
	img := disktest.Make(t, "64M", append(images[name].args, "-N", "16384")...)
	switch name {
	case "unsigned":
		disktest.Debugfs(t, img, "set_super_value flags 2")
	case "tea", "legacy":
		disktest.Debugfs(t, img, "set_super_value def_hash_version "+name)
	}
	return img
}

func names(n, pad int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("nam\xe9-%d%s", i, strings.Repeat("\xfe", pad)))
	}
	return out
}

// TestKernelDirectories reads directories that the kernel filled, changes them, and has the kernel and e2fsck read them.
func TestKernelDirectories(t *testing.T) {
	for name, v := range images {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			img := makeImage(t, name)
			want := map[string]uint32{}
			list := names(v.names, v.pad)
			r := rand.New(rand.NewPCG(7, 8))
			disktest.Mount(t, img, "", func(dir string) {
				d := filepath.Join(dir, "d")
				require.NoError(t, os.Mkdir(d, 0o755))
				for _, n := range list {
					require.NoError(t, os.WriteFile(filepath.Join(d, n), nil, 0o600))
				}
				for i := 0; i < len(list); i += 7 {
					require.NoError(t, os.Remove(filepath.Join(d, list[i])))
				}
				for i, n := range list {
					if i%7 != 0 {
						want[n] = ino(t, filepath.Join(d, n))
					}
				}
				want["."], want[".."] = ino(t, d), disk.InoRoot
			})
			m := disktest.Open(t, img)
			root, rs := openDir(t, m, disk.InoRoot)
			dino, ft, err := root.Lookup(rs, "d")
			require.NoError(t, err)
			require.Equal(t, want["."], dino)
			if name != "notype" {
				require.EqualValues(t, FTDir, ft)
			}
			d, s := openDir(t, m, dino)
			require.Equal(t, name != "noindex", s.Indexed())
			require.Equal(t, want, all(t, d, s))
			for n, ino := range want {
				got, _, err := d.Lookup(s, n)
				require.NoError(t, err)
				require.Equal(t, ino, got)
			}
			for i := 0; i < len(list); i += 7 {
				_, _, err := d.Lookup(s, list[i])
				require.ErrorIs(t, err, ErrNotExist)
			}
			// Rename half the files, into space that removals left.
			renamed := 0
			for i, n := range list {
				if i%7 == 0 || r.IntN(2) == 0 {
					continue
				}
				to := fmt.Sprintf("new-%d%s", i, strings.Repeat("\xfd", v.pad))
				if err := d.Add(s, to, want[n], FTReg); err != nil {
					require.ErrorIs(t, err, errNoSpace)
					continue
				}
				_, err := d.Remove(s, n)
				require.NoError(t, err)
				want[to] = want[n]
				delete(want, n)
				renamed++
			}
			require.Greater(t, renamed, 20)
			disktest.Fsck(t, img)
			disktest.Mount(t, img, "", func(dir string) {
				d := filepath.Join(dir, "d")
				entries, err := os.ReadDir(d)
				require.NoError(t, err)
				require.Len(t, entries, len(want)-2)
				for n, i := range want {
					require.Equal(t, i, ino(t, filepath.Join(d, n)))
				}
			})
		})
	}
}

func ino(t testing.TB, path string) uint32 {
	t.Helper()
	st, err := os.Lstat(path)
	require.NoError(t, err)
	return statIno(st)
}

// TestBuiltDirectories builds directories, puts them into images, and has e2fsck and the kernel read and change them.
func TestBuiltDirectories(t *testing.T) {
	for name, v := range images {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			img := makeImage(t, name)
			tmp := filepath.Join(t.TempDir(), "x")
			require.NoError(t, os.WriteFile(tmp, []byte("x"), 0o600))
			disktest.Debugfs(t, img, "write "+tmp+" target", "write "+tmp+" d")
			list := names(5*v.names, v.pad)

			// In memory first, to know how long it becomes.
			m := disktest.Open(t, img)
			root, rs := openDir(t, m, disk.InoRoot)
			target, _, err := root.Lookup(rs, "target")
			require.NoError(t, err)
			dino, _, err := root.Lookup(rs, "d")
			require.NoError(t, err)
			n, _ := m.Inode(dino)
			n.Mode = disk.ModeDir | 0o755
			d, err := New(m.Superblock, dino, &n)
			require.NoError(t, err)
			s := &memStore{t: t, size: m.BlockSize()}
			require.NoError(t, d.Init(s, disk.InoRoot))
			for _, n := range list {
				require.NoError(t, d.Add(s, n, target, FTReg))
			}
			for i := 0; i < len(list); i += 5 {
				_, err := d.Remove(s, list[i])
				require.NoError(t, err)
			}
			if name != "noindex" {
				rt, h, err := d.root(s)
				require.NoError(t, err)
				rt.b.Put()
				require.Equal(t, m.BlockSize() == 1024, h.levels > 0)
			}

			// A file of that length becomes the directory.
			require.NoError(t, os.WriteFile(tmp, bytes.Repeat([]byte{1}, len(s.blocks)*s.size), 0o600))
			disktest.Debugfs(t, img, "rm d", "write "+tmp+" d")
			m = disktest.Open(t, img)
			root, rs = openDir(t, m, disk.InoRoot)
			again, _, err := root.Lookup(rs, "d")
			require.NoError(t, err)
			require.Equal(t, dino, again)
			n2, slot := m.Inode(dino)
			require.Equal(t, n.Generation, n2.Generation)
			blocks := m.Map(dino, &n2)
			require.Len(t, blocks, len(s.blocks))
			for i, b := range s.blocks {
				if blocks[i] == 0 { // debugfs leaves holes for zeroes
					t.Fatal("hole")
				}
				m.SetBlock(blocks[i], b.data)
			}
			n2.Mode, n2.LinksCount = disk.ModeDir|0o755, 2
			if s.indexed {
				n2.Flags |= disk.FlIndex
			}
			m.SetInode(dino, &n2, slot)
			tn, slot := m.Inode(target)
			tn.LinksCount += uint16(len(list) - (len(list)+4)/5)
			m.SetInode(target, &tn, slot)
			rn, slot := m.Inode(disk.InoRoot)
			rn.LinksCount++
			m.SetInode(disk.InoRoot, &rn, slot)
			_, err = root.Replace(rs, "d", dino, FTDir)
			require.NoError(t, err)
			i, off := m.DescLocation(0)
			gb := m.Block(m.DescBlock(i))
			gd := m.Group(0)
			gd.UsedDirsCount++
			m.EncodeGroup(0, &gd, gb[off:])
			m.SetBlock(m.DescBlock(i), gb)
			disktest.Fsck(t, img)

			disktest.Mount(t, img, "", func(dir string) {
				d := filepath.Join(dir, "d")
				entries, err := os.ReadDir(d)
				require.NoError(t, err)
				require.Len(t, entries, len(list)-(len(list)+4)/5)
				for i, n := range list {
					switch {
					case i%5 == 0:
						require.NoError(t, os.Mkdir(filepath.Join(d, "k"+n), 0o755))
						require.NoFileExists(t, filepath.Join(d, n))
					case i%5 == 1:
						require.NoError(t, os.Remove(filepath.Join(d, n)))
					default:
						require.Equal(t, target, ino(t, filepath.Join(d, n)))
					}
					if i > 4000 {
						break
					}
				}
			})
			disktest.Fsck(t, img)
		})
	}
}
