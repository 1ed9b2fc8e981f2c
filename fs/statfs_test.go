package fs

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestStatfs compares what df shows with the kernel's ext4, with and without minixdf.
func TestStatfs(t *testing.T) {
	size := func(dir string) [2]uint64 {
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(dir, &st))
		return [2]uint64{st.Blocks, st.Bfree} // the kernel keeps some for itself of what users may have
	}
	m := newMount(t, Options{}, "-m", "5")
	bsd := size(m.dir)
	m.unmount()
	m.open()
	again := mountVolume(t, m.volume, Options{MinixDF: true})
	minix := size(again.dir)
	again.unmount()
	require.Greater(t, minix[0], bsd[0])
	require.Equal(t, bsd[1], minix[1])
	disktest.Mount(t, m.volume.path, "ro", func(dir string) { require.Equal(t, size(dir), bsd) })
	disktest.Mount(t, m.volume.path, "ro,minixdf", func(dir string) { require.Equal(t, size(dir), minix) })
}
