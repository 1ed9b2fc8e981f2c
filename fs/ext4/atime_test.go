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

// TestNoLaterTime: inodes of 128 bytes have whole seconds, up to 2038. A read that finds the access time to be that of now changes nothing, as with the kernel's ext4: each one stored the inode,
// and after 2038 all of them would have.
func TestNoLaterTime(t *testing.T) {
	for _, opt := range []ext4.Options{{Atime: ext4.AtimeRelative}, {Atime: ext4.AtimeAlways}} {
		v, _ := open(t, disktest.Make(t, "16M", "-I", "128"), opt)
		root, err := v.Root()
		require.NoError(t, err)
		defer root.Put()
		f := create(t, root, "f")
		defer f.Put()
		read := func() (commits int64) {
			_, err := f.Read(0, 10)
			require.NoError(t, err)
			require.NoError(t, v.Sync())
			return v.Stats().Commits
		}
		for same := false; !same; {
			second := time.Now().Unix()
			require.NoError(t, write(f, 0, 10))
			first, again := read(), read()
			if same = time.Now().Unix() == second; same {
				require.Equal(t, first, again, "%v", opt.Atime)
				require.Equal(t, time.Unix(second, 0), f.Attr().Atime)
			}
		}
	}
}
