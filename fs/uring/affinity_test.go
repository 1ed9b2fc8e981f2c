package uring

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/iouring"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// TestAffinity: a thread stays on its queue's CPU, but for a large READ beside another.
func TestAffinity(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs")
	}
	done := make(chan struct{})
	go func() { // the goroutine ends with its thread
		defer close(done)
		runtime.LockOSThread()
		mask := func() (n int) {
			var set unix.CPUSet
			require.NoError(t, unix.SchedGetaffinity(0, &set))
			return set.Count()
		}
		q := &queue{online: true}
		s := &server{q: q}
		s.thread.Begin()
		var cpus unix.CPUSet
		require.NoError(t, unix.SchedGetaffinity(0, &cpus))
		all := cpus.Count()
		s.stay()
		require.Equal(t, 1, mask())
		s.beginLargeRead()
		require.Equal(t, 1, mask(), "the only one stays")
		s.endLargeRead()
		q.largeReads.Add(1)
		s.beginLargeRead()
		require.Equal(t, all, mask())
		s.endLargeRead()
		s.stay()
		require.Equal(t, 1, mask())

		normal := uint32(unix.Gettid())
		if real, end := realTime(); real != 0 {
			for range 2 {
				s.place(real)
				require.Equal(t, all, mask(), "a real-time program may keep the thread from its CPU")
				s.place(normal)
				require.Equal(t, 1, mask())
			}
			s.place(real)
			end <- struct{}{} // the program goes on without
			for range askAgain - 1 {
				s.place(real)
			}
			<-end
			s.place(real)
			require.Equal(t, 1, mask())
		}

		other := cpus // of a daemon that is kept from the queue's CPU
		other.Clear(q.cpu)
		require.NoError(t, unix.SchedSetaffinity(0, &other))
		s = &server{q: q}
		s.thread.Begin()
		s.stay()
		require.Equal(t, all-1, mask())
		require.False(t, s.bound())
	}()
	<-done
}

// realTime returns a thread that has SCHED_FIFO until the channel takes something, and gives it back then; 0 where it cannot be had.
func realTime() (uint32, chan struct{}) {
	thread, end := make(chan uint32), make(chan struct{})
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its policy
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
			thread <- 0
			return
		}
		thread <- uint32(unix.Gettid())
		<-end
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
		end <- struct{}{}
	}()
	return <-thread, end
}

// TestLetGo: a thread that the guard of SCHED_IDLE has let go, since it did not run, is bound again with the next request.
func TestLetGo(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs")
	}
	g, err := schedidle.New(1)
	if err != nil {
		t.Skip(err)
	}
	defer g.Close()
	done := make(chan struct{})
	go func() { // the goroutine ends with its thread
		defer close(done)
		runtime.LockOSThread()
		mask := func() int {
			var set unix.CPUSet
			require.NoError(t, unix.SchedGetaffinity(0, &set))
			return set.Count()
		}
		all := mask()
		ring, err := newRing(commands)
		if err != nil {
			t.Log("SKIPPED:", err)
			return
		}
		defer ring.Close()
		s := &server{q: &queue{online: true}, ring: ring}
		s.x.Header = make([]byte, exchange.InHeaderSize)
		s.thread.Begin()
		s.stay()
		require.Equal(t, 1, mask())
		s.idle = g.Add(&s.q.sched, s.due())
		defer s.idle.Remove()
		request := func() {
			s.took()
			s.place(0)
			s.idle.Answered()
		}
		for !s.idle.Idle() { // where others have the CPU the guard may let it go meanwhile
			request()
		}
		ring.Next().Opcode = iouring.OpNop
		ring.Publish() // somebody waits
		for s.idle.Idle() || mask() != all {
			time.Sleep(time.Millisecond)
		}
		for mask() != 1 { // at the second if the guard had let it go, and not said so yet
			request()
		}
		require.NoError(t, ring.Enter(true))
		ring.Reap()
	}()
	<-done
}
