package ext4_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestByNumber: a number leads to a file with a name, or nowhere.
func TestByNumber(t *testing.T) {
	img := disktest.Make(t, "32M", "-O", "orphan_file,quota,ea_inode", "-E", "lazy_itable_init=1", "-N", "2000")
	v, done := open(t, img, ext4.Options{})
	if v.ReadOnly() { // quota
		done()
		img = disktest.Make(t, "32M", "-O", "orphan_file,ea_inode", "-E", "lazy_itable_init=1", "-N", "2000")
		v, done = open(t, img, ext4.Options{})
	}
	root, err := v.Root()
	require.NoError(t, err)
	f := create(t, root, "file")
	ino, gen := f.Ino(), f.Generation()
	found := func() []uint32 {
		var list []uint32
		for n := range uint32(2100) {
			i, err := v.ByNumber(n)
			if err != nil {
				require.ErrorIs(t, err, ext4.ErrStale)
				continue
			}
			list = append(list, n)
			i.Put()
		}
		return list
	}
	require.Equal(t, []uint32{2, 11, ino}, found(), "the root, lost+found, and one file")
	same, err := v.ByNumber(ino)
	require.NoError(t, err)
	require.Same(t, f, same)
	same.Put()
	require.NoError(t, root.Unlink("file"))
	require.Equal(t, []uint32{2, 11}, found(), "a file without names")
	_, err = f.Write(0, []byte("and it is still there"))
	require.NoError(t, err)
	f.Put()
	require.Equal(t, []uint32{2, 11}, found(), "a file that is no more")
	f = create(t, root, "file")
	require.Equal(t, ino, f.Ino())
	require.NotEqual(t, gen, f.Generation())
	f.Put()
	require.Equal(t, []uint32{2, 11, ino}, found(), "another with its number")
	f, err = root.Tmpfile(0o600, 0, 0)
	require.NoError(t, err)
	require.Equal(t, []uint32{2, 11, ino}, found(), "one that never had a name")
	require.NoError(t, root.Link(f, "late"))
	require.Equal(t, []uint32{2, 11, ino, f.Ino()}, found())
	f.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
}

// TestByNumberMeanwhile asks for numbers while files with them are made, removed, and made in vain.
func TestByNumberMeanwhile(t *testing.T) {
	img := disktest.Make(t, "16M", "-b", "1024")
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := uint32(0); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if i, err := v.ByNumber(11 + n%8); err == nil {
					i.Attr()
					i.Put()
				} else if err != ext4.ErrStale {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 1000 {
		f := create(t, root, "f")
		_, err := f.Write(0, make([]byte, 3000))
		require.NoError(t, err)
		require.NoError(t, root.Unlink("f"))
		f.Put()
		require.NoError(t, put(root.Mkdir("d", 0o755, 0, 0, ext4.Xattrs{{Name: "user.small", Value: []byte("v")}})))
		_, err = root.Create("vain", 0o100644, 0, 0, 0, 0, ext4.Xattrs{{Name: "user.big", Value: make([]byte, 2000)}})
		require.ErrorIs(t, err, ext4.ErrNoSpace)
		require.NoError(t, root.Rmdir("d"))
		require.NoError(t, put(root.Tmpfile(0o600, 0, 0)))
	}
	close(stop)
	wg.Wait()
	require.False(t, v.ReadOnly())
	root.Put()
	done()
	disktest.Fsck(t, img)
}
