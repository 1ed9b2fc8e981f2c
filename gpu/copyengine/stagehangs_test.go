package copyengine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	cpu "github.com/lanefs/lanefs/gpu/host"
)

// stuckAlloc is a runtime that does not return from an allocation of so many bytes until it is let go of.
type stuckAlloc struct {
	gpu.Runtime
	of    int64
	stuck chan struct{} // closed by the allocation
	until chan struct{}
}

func (r *stuckAlloc) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	if n == r.of {
		close(r.stuck)
		<-r.until
	}
	return r.Runtime.Alloc(kind, n)
}

// TestStageHangs: a driver that does not return from the allocation of a stage holds up nobody who pins, unpins, or takes a stage that there is.
func TestStageHangs(t *testing.T) {
	rt, err := cpu.Open(cpu.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	const size = 64 << 10
	stuck := &stuckAlloc{rt, 2 * size, make(chan struct{}), make(chan struct{})}
	e, err := New(stuck)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	was, err := e.Stage(size)
	require.NoError(t, err)
	e.Unstage(was)
	page, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(page)) })

	ended := make(chan []byte)
	go func() {
		b, err := e.Stage(2 * size)
		if err != nil {
			t.Error(err)
		}
		ended <- b
	}()
	<-stuck.stuck
	require.NoError(t, e.Pin(page, nil))
	gone := make(chan bool)
	e.Unpin(page, func() { gone <- true })
	require.True(t, <-gone)
	again, err := e.Stage(size)
	require.NoError(t, err)
	require.Same(t, &was[0], &again[0])
	close(stuck.until)
	b := <-ended
	require.Len(t, b, 2*size)
	_, ok := e.lookup(b)
	require.True(t, ok)
}

// refusing is a runtime that registers no pages.
type refusing struct {
	gpu.Runtime
	err error
}

func (r refusing) Register([]byte, gpu.Registered) (gpu.Memory, error) { return nil, r.err }

// TestPinFails: pages that are not pinned are their owner's again, but for those that a call uses which was given up.
func TestPinFails(t *testing.T) {
	rt, e := onCPU(t)
	page, after := make([]byte, 4096), 0
	e.rt = refusing{rt, unix.ENOMEM}
	require.ErrorIs(t, e.Pin(page, func() { after++ }), unix.ENOMEM)
	require.Equal(t, 1, after)
	require.Zero(t, e.Left())
	e.rt = refusing{rt, calls.Hang("it does not return")}
	require.ErrorIs(t, e.Pin(page, func() { after++ }), calls.ErrHangs)
	require.Equal(t, 1, after)
	require.EqualValues(t, 4096, e.Left())
}
