package copyengine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	cpu "github.com/lanefs/lanefs/gpu/host"
)

// onCPU is an engine on a runtime of the CPU's, closed when the test ends.
func onCPU(t *testing.T) (gpu.Runtime, *Engine) {
	t.Helper()
	rt, err := cpu.Open(cpu.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	e, err := New(rt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return rt, e
}

// The device's address of what lies in a stage or in pinned pages, at whatever place, and of nothing else.
func TestPinnedMemory(t *testing.T) {
	_, e := onCPU(t)
	const size = 64 << 10
	all, err := unix.Mmap(-1, 0, 5*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(all)) })
	part := func(i int) []byte { return all[i*size : (i+1)*size] }
	for _, i := range []int{3, 1} { // with room before, between and behind
		require.NoError(t, e.Pin(part(i), nil))
	}
	stage, err := e.Stage(size)
	require.NoError(t, err)
	for _, b := range [][]byte{part(1), part(3), stage} {
		first, ok := e.lookup(b)
		require.True(t, ok)
		last, ok := e.lookup(b[size-1:])
		require.True(t, ok)
		require.Equal(t, first+gpu.Addr(size-1), last)
	}
	for _, b := range [][]byte{part(0), part(2), part(4), all[2*size-1 : 2*size+1], all[size-1:][:2], nil} {
		_, ok := e.lookup(b)
		require.False(t, ok)
	}
	gone := make(chan bool, 1)
	e.Unpin(part(1), func() { gone <- true })
	require.True(t, <-gone)
	_, ok := e.lookup(part(1))
	require.False(t, ok)
	_, ok = e.lookup(part(3))
	require.True(t, ok)
}

// Bytes that a file does not have any more are an error, not the end of the process.
func TestCopyOfTruncatedFile(t *testing.T) {
	rt, e := onCPU(t)
	m, err := rt.Alloc(gpu.HostMapped, 64<<10)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, make([]byte, 64<<10), 0o600))
	fd, err := unix.Open(path, unix.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	b, err := unix.Mmap(fd, 0, 64<<10, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	require.NoError(t, e.Write(m, 0, b))
	require.NoError(t, unix.Truncate(path, 4096))
	require.ErrorContains(t, e.Write(m, 0, b), "copying 65536 bytes: ")
	require.NoError(t, e.Write(m, 0, b[:4096]))
}
