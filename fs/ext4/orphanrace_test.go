package ext4_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestOrphanListBesideChanges: files without names are changed, and fail to be, while their neighbours on the orphan list go. The
// race detector sees an inode's slot that is read without its block's lock.
func TestOrphanListBesideChanges(t *testing.T) {
	img := disktest.Make(t, "32M", "-O", "^orphan_file")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	const threads, rounds = 4, 100
	var all sync.WaitGroup
	for k := range threads {
		all.Go(func() {
			for n := range rounds {
				f, err := root.Tmpfile(0o100600, 0, 0)
				if err != nil {
					t.Error(err)
					return
				}
				for range 4 {
					uid := uint32(n)
					if _, err := f.SetAttr(ext4.SetAttr{UID: &uid}); err != nil {
						t.Error(err)
					}
					_ = f.Setxattr("user.x", make([]byte, 60000), 0) // does not fit, and is undone
				}
				if n%3 == 0 { // it comes off the list with a name
					if err := root.Link(f, fmt.Sprintf("f%d-%d", k, n)); err != nil {
						t.Error(err)
					}
				}
				f.Put()
			}
		})
	}
	all.Wait()
	root.Put()
	done()
	disktest.Fsck(t, img)
}
