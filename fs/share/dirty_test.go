package share_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestDirtyPages: what a program has stored in a file's pages, and the kernel not yet written, is in a map that is made after it, and makes an older one stale.
func TestDirtyPages(t *testing.T) {
	m := sharetest.New(t, 64*mib, 16*mib)
	data := noise(1, mib)
	f := m.Write("file", data)
	s := connect(t, f)
	pages, err := unix.Mmap(int(f.Fd()), 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(pages)) }()
	before, err := s.Map(f, 0, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, before.Bytes()))
	for i := range 3 {
		copy(pages[i*100_000:], "stored")
		copy(data[i*100_000:], "stored")
		now, err := s.Map(f, 0, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, now.Bytes()))
		require.True(t, now.Current())
		require.False(t, before.Current())
		before = now
	}
}
