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
		require.NoError(t, unix.SchedGetaffinity(0, &s.allowed))
		all := mask()
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

		set := func(cpus unix.CPUSet) { require.NoError(t, unix.SchedSetaffinity(0, &cpus)) }
		leave := func() { // and come back
			s.beginLargeRead()
			s.endLargeRead()
		}
		other := s.allowed
		other.Clear(q.cpu)
		set(other) // from outside, of a thread that stays
		leave()
		require.Equal(t, all-1, mask())
		s.stay()
		require.Equal(t, all-1, mask())
		wide := other
		wide.Set(q.cpu)
		s.left = true // as after a leave
		set(wide)
		s.stay()
		require.Equal(t, 1, mask(), "it is allowed again")
		leave()
		require.Equal(t, all, mask())
		set(other) // of one that has left
		s.stay()
		require.Equal(t, all-1, mask())
		set(wide)

		s = &server{q: q} // of a daemon that was kept from the queue's CPU
		for cpu := range 1024 {
			if cpu != q.cpu && all > 1 {
				s.allowed.Set(cpu)
			}
		}
		require.NoError(t, unix.SchedSetaffinity(0, &s.allowed))
		s.stay()
		require.Equal(t, all-1, mask())
	}()
	<-done
}
