package ext4_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestCookiesLowBits: a program that takes the low bits of a directory's offsets for itself, as GlusterFS does, reads on where it was.
func TestCookiesLowBits(t *testing.T) {
	v, done := open(t, disktest.Make(t, "32M"), ext4.Options{})
	defer done()
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	for _, n := range []int{3, 600} { // in one block, and with an index
		dir, err := root.Mkdir(fmt.Sprint(n), 0o755, 0, 0)
		require.NoError(t, err)
		for i := range n {
			require.NoError(t, put(dir.Create(fmt.Sprintf("file %d", i), unix.S_IFREG|0o644, 0, 0, 0, 0)))
		}
		first := func(cookie uint64) (name string) {
			require.NoError(t, dir.ReadDir(cookie, func(e ext4.DirEntry) bool {
				name = e.Name
				return false
			}))
			return name
		}
		seen := 0
		require.NoError(t, dir.ReadDir(0, func(e ext4.DirEntry) bool {
			if seen++; seen > 2 { // behind "." and ".." there are no bits to take
				require.Equal(t, first(e.Cookie), first(e.Cookie&^0xff), "behind %q, %#x", e.Name, e.Cookie)
			}
			return true
		}))
		require.Equal(t, n+2, seen)
		dir.Put()
	}
}
