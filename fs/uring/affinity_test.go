package uring

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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
