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

// TestClockSetBack: with strictatime the access time follows a clock that was set back, as the kernel's does. Before, it stayed until the clock had caught up.
func TestClockSetBack(t *testing.T) {
	v, _ := open(t, disktest.Make(t, "16M"), ext4.Options{Atime: ext4.AtimeAlways})
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	f := create(t, root, "f")
	defer f.Put()
	require.NoError(t, write(f, 0, 10))
	later := time.Now().AddDate(300, 0, 0)
	_, err = f.SetAttr(ext4.SetAttr{Atime: &later})
	require.NoError(t, err)
	require.True(t, f.Attr().Atime.Equal(later))
	_, err = f.Read(0, 10)
	require.NoError(t, err)
	require.True(t, f.Attr().Atime.Before(later))
}
