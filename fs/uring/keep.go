package uring

import (
	"os"
	"strings"
	"time"
)

// A thread that waits in an ordinary system call does not give its Go processor back. The Go runtime's monitor, a thread that wakes up every 20 µs for
// that, takes it away, and mostly wakes another thread to do something with it. When the request comes the thread has to find a
// processor again. On a virtual machine that was up to a third of the CPU time of small requests.
//
// So a thread to which requests come quickly keeps its processor while it waits (keeper): for the runtime it runs. Then the monitor has nothing to do, and
// sleeps for 10 ms at a time. When the runtime needs the thread, to stop the world or since it has run for 10 ms without a break, it sends
// it a signal. That ends the wait, and the thread waits as usual until requests are quick again.
//
// While they wait, keepers' processors are of no use to others. So there are no more keepers than Options.Keepers, and whoever sets that has the
// runtime have as many processors more.

const (
	quickWait    = time.Millisecond // the longest wait that makes a thread a keeper, or lets it stay one
	quickEnough  = 32               // quick waits in a row that make a thread one
	processorsOf = 2                // keepers of a CPU: what a program waits for, and what the kernel sends beside it
)

// DefaultKeepers is how many keepers there should be on a machine with so many CPUs, 0 if the runtime sends no signals to threads that are to stop.
func DefaultKeepers(cpus int) int {
	if strings.Contains(os.Getenv("GODEBUG"), "asyncpreemptoff=1") {
		return 0
	}
	return min(processorsOf*cpus, 16)
}

// wait returns when a completion may be there.
func (s *server) wait() (err error) {
	start := time.Now()
	if s.quick >= quickEnough && s.q.t.keep() {
		err = s.ring.EnterKeeping()
		s.q.t.keepers.Add(-1)
	} else {
		err = s.ring.Enter(true)
	}
	if s.ring.Ready() && time.Since(start) < quickWait {
		s.quick++
	} else {
		s.quick = 0
	}
	return err
}

// keep makes the calling thread a keeper if there can be one more.
func (t *Transport) keep() bool {
	if int(t.keepers.Add(1)) <= t.opt.Keepers {
		return true
	}
	t.keepers.Add(-1)
	return false
}
