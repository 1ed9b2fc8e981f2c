package powercut

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lanefs/lanefs/lab/internal/image"
)

// Layout is a kind of volume and how it is mounted.
type Layout struct {
	Name    string
	Size    string   // as mke2fs takes it
	Args    []string // of mkfs.ext4
	LBA     int      // bytes of the device's blocks
	Block   int      // bytes of the volume's blocks
	Discard bool
	Commit  time.Duration
	Maps    bool // files have block maps: no fallocate

	Miscounts bool // e2fsck may miscount the blocks of an inode when it recovers such a volume: see miscount
}

// Layouts are the volumes of a campaign. Journals are as small as mkfs makes them, 1,024 blocks, so that they wrap.
var Layouts = []Layout{
	{Name: "default", Size: "16M", Block: 4096, LBA: 512, Commit: 200 * time.Millisecond,
		Args: []string{"-b", "4096", "-J", "size=4", "-O", "metadata_csum_seed,orphan_file"}},
	{Name: "1k", Size: "12M", Block: 1024, LBA: 512, Commit: 50 * time.Millisecond,
		Args: []string{"-b", "1024", "-J", "size=1", "-N", "1600"}},
	{Name: "discard", Size: "12M", Block: 1024, LBA: 512, Commit: 20 * time.Millisecond, Discard: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "orphan_file", "-g", "4096"}},
	{Name: "nocsum", Size: "12M", Block: 2048, LBA: 512, Commit: 100 * time.Millisecond,
		Args: []string{"-b", "2048", "-J", "size=2", "-O", "^metadata_csum"}},
	{Name: "4kn", Size: "16M", Block: 4096, LBA: 4096, Commit: 5 * time.Second, Discard: true,
		Args: []string{"-b", "4096", "-J", "size=4"}},
	{Name: "32bit", Size: "12M", Block: 1024, LBA: 1024, Commit: 30 * time.Millisecond,
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "^64bit,^flex_bg", "-g", "2048", "-I", "128"}},
	{Name: "uninit_bg", Size: "10M", Block: 1024, LBA: 512, Commit: 100 * time.Millisecond,
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "^metadata_csum,uninit_bg", "-g", "1024"}},
	{Name: "tight", Size: "5M", Block: 1024, LBA: 512, Commit: 50 * time.Millisecond,
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "orphan_file", "-m", "0", "-N", "400"}},
	{Name: "full", Size: "2200K", Block: 1024, LBA: 512, Commit: 50 * time.Millisecond, // a quarter of the operations find no space, and some no room for nodes of trees
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "orphan_file", "-m", "0", "-N", "300"}},
	{Name: "inline_data", Size: "12M", Block: 1024, LBA: 512, Commit: 50 * time.Millisecond, Miscounts: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "inline_data,orphan_file"}},
	{Name: "ext3", Size: "12M", Block: 1024, LBA: 512, Commit: 50 * time.Millisecond, Maps: true,
		Args: []string{"-b", "1024", "-J", "size=1", "-O", "^extent,^64bit,^metadata_csum,^flex_bg"}},
}

func layoutNamed(name string) (Layout, error) {
	var names []string
	for _, l := range Layouts {
		if l.Name == name {
			return l, nil
		}
		names = append(names, l.Name)
	}
	return Layout{}, fmt.Errorf("layout %q: there are %s", name, strings.Join(names, ", "))
}

// make makes an image of the layout at path. Every free block is filled with a pattern.
func (l *Layout) make(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := image.Make(path, l.Size, l.Args...); err != nil {
		return err
	}
	return image.FillFree(path, l.Block, func(n int64, b []byte) bool {
		fill(b, stamp{worker: garbage, file: uint32(n)}, 0)
		return true
	})
}
