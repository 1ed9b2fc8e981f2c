package ext4_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestSetFlags sets flags and has them obeyed.
func TestSetFlags(t *testing.T) {
	img := disktest.Make(t, "16M")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f := create(t, root, "f")
	base := f.Attr().Flags
	require.NoError(t, f.SetFlags(base|disk.FlImmutable))
	_, err = f.Write(0, []byte("x"))
	require.ErrorIs(t, err, ext4.ErrPerm)
	require.ErrorIs(t, root.Unlink("f"), ext4.ErrPerm)
	require.ErrorIs(t, root.Rename("f", root, "g", 0), ext4.ErrPerm)
	require.NoError(t, f.SetFlags(base|disk.FlAppend))
	_, err = f.Write(0, []byte("abc"))
	require.NoError(t, err)
	_, err = f.Write(0, []byte("x"))
	require.ErrorIs(t, err, ext4.ErrPerm)
	_, err = f.Write(3, []byte("d"))
	require.NoError(t, err)
	require.ErrorIs(t, f.SetFlags(0), ext4.ErrNotSup)
	require.Equal(t, base, f.Attr().Flags, "all but the extents, as in the kernel")
	require.ErrorIs(t, f.SetFlags(base|disk.FlTopdir), ext4.ErrNotSup)
	require.ErrorIs(t, f.SetFlags(base|disk.FlReserved), ext4.ErrNotSup)
	require.NoError(t, f.SetFlags(base|disk.FlNodump))
	fifo, err := root.Create("fifo", unix.S_IFIFO|0o600, 0, 0, 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, fifo.SetFlags(disk.FlSync), ext4.ErrNotSup)
	require.NoError(t, fifo.SetFlags(disk.FlNoatime))
	fifo.Put()
	f.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
	v, _ = open(t, img, ext4.Options{})
	root, err = v.Root()
	require.NoError(t, err)
	f, err = root.Lookup("f")
	require.NoError(t, err)
	require.Equal(t, base|disk.FlNodump, f.Attr().Flags)
	f.Put()
	root.Put()
}

// TestFlagsComeFirst: what a flag forbids is told before what else is wrong, as the kernel does it.
func TestFlagsComeFirst(t *testing.T) {
	v, _ := open(t, disktest.Make(t, "16M"), ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	defer root.Put()
	full, err := root.Mkdir("full", 0o700, 0, 0)
	require.NoError(t, err)
	defer full.Put()
	create(t, full, "f").Put()
	require.ErrorIs(t, root.Rmdir("full"), ext4.ErrNotEmpty)
	base := root.Attr().Flags
	require.NoError(t, root.SetFlags(base|disk.FlAppend))
	for _, remove := range []func(string) error{root.Rmdir, root.Unlink} {
		require.ErrorIs(t, remove("full"), ext4.ErrPerm)
		require.ErrorIs(t, remove("none"), ext4.ErrNotExist)
	}
	require.NoError(t, root.SetFlags(base))
	require.NoError(t, full.SetFlags(full.Attr().Flags|disk.FlImmutable))
	for _, remove := range []func(string) error{root.Rmdir, root.Unlink} {
		require.ErrorIs(t, remove("full"), ext4.ErrPerm)
	}
}
