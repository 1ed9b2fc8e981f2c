package wire

import (
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// reader is the client's end as a file that can be waited for.
func reader(t *testing.T, fd int) *os.File {
	t.Helper()
	f := os.NewFile(uintptr(fd), "end")
	t.Cleanup(func() { f.Close() })
	f.SetReadDeadline(time.Now().Add(2 * time.Minute))
	return f
}

// TestEvent: the client reads 8 bytes for a signal, as from an eventfd, and Signal never blocks.
func TestEvent(t *testing.T) {
	e, fd, err := NewEvent()
	require.NoError(t, err)
	f := reader(t, fd)
	raw, err := f.SyscallConn()
	require.NoError(t, err)
	e.Signal()
	var b [8]byte
	n, err := f.Read(b[:])
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.EqualValues(t, 1, b[0])
	for range 100000 {
		e.Signal()
	}
	require.NoError(t, WaitEvent(raw), "one call takes all")
	_, err = unix.Read(fd, b[:])
	require.ErrorIs(t, err, unix.EAGAIN)
	e.Close()
	e.Signal() // a change may come late
	require.ErrorIs(t, WaitEvent(raw), io.EOF)
}

// TestEventIsOneWay: nothing can be put where the daemon would have to take it, descriptors above all.
func TestEventIsOneWay(t *testing.T) {
	e, fd, err := NewEvent()
	require.NoError(t, err)
	defer e.Close()
	defer unix.Close(fd)
	require.ErrorIs(t, unix.Sendmsg(fd, []byte{1}, unix.UnixRights(0), nil, unix.MSG_NOSIGNAL), unix.EPIPE)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0)
	require.NoError(t, err)
	require.NoError(t, e.raw.Control(func(own uintptr) {
		flags, err := unix.FcntlInt(own, unix.F_GETFL, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.O_NONBLOCK, "the flags of one end are not the other's")
	}))
}

// TestEventClosed: signals while it is closed go nowhere else, though the descriptor's number is soon another's.
func TestEventClosed(t *testing.T) {
	for range 200 {
		e, fd, err := NewEvent()
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 50 {
				e.Signal()
			}
		})
		e.Close()
		e2, fd2, err := NewEvent()
		require.NoError(t, err)
		wg.Wait()
		var b [8]byte
		_, err = unix.Read(fd2, b[:])
		require.ErrorIs(t, err, unix.EAGAIN)
		e2.Close()
		CloseAll([]int{fd, fd2})
	}
}

// TestDoorbell: Wait returns when the client rings, after Wake and after End, whatever the client does to the eventfd.
func TestDoorbell(t *testing.T) {
	d, fd, err := NewDoorbell()
	require.NoError(t, err)
	defer unix.Close(fd)
	RingDoorbell(fd)
	require.NoError(t, d.Wait())
	d.Wake()
	require.NoError(t, d.Wait())
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0) // a read(2) of it now waits
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for d.Wait() == nil {
			}
		})
	}
	for range 1000 {
		RingDoorbell(fd)
		d.Wake()
	}
	d.End()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "Wait does not return after End")
	}
	require.True(t, errors.Is(d.Wait(), os.ErrDeadlineExceeded))
	d.Close()
}
