package ext4_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestNoDirAtime reads a file and a directory whose access times are due.
func TestNoDirAtime(t *testing.T) {
	for _, none := range []bool{false, true} {
		v, _ := open(t, disktest.Make(t, "16M"), ext4.Options{NoDirAtime: none})
		root, err := v.Root()
		require.NoError(t, err)
		f := create(t, root, "f")
		require.NoError(t, write(f, 0, 10))
		past := time.Unix(1, 0)
		for _, i := range []*ext4.Inode{root, f} {
			_, err = i.SetAttr(ext4.SetAttr{Atime: &past})
			require.NoError(t, err)
		}
		require.NoError(t, root.ReadDir(0, func(ext4.DirEntry) bool { return true }))
		require.Equal(t, none, root.Attr().Atime.Equal(past))
		_, err = f.Read(0, 10)
		require.NoError(t, err)
		require.False(t, f.Attr().Atime.Equal(past))
		f.Put()
		root.Put()
	}
}
