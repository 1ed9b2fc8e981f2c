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
// it a signal. That ends the wait, and the thread begins another. Such a signal can be lost where a debugger detaches from the thread (strace), and the runtime sends no second one: so no wait is
// longer than keepWait. A keeper stays one until no request has come for that long. It has missed some
// signals by then, at a cost far below that of the monitor's search, which each thread that gives its processor back sets off: a program that the
// scheduler moves to another CPU, or that waits for something else, comes back within that time.
//
// While they wait, keepers' processors are of no use to others. So there are no more keepers than Options.Keepers, and whoever sets that has the
// runtime have as many processors more.

const (
	quickWait    = time.Millisecond       // the longest wait that makes a thread a keeper
	quickEnough  = 32                     // quick waits in a row that make a thread one
	keepWait     = 100 * time.Millisecond // the longest wait that lets it stay one
	processorsOf = 2                      // keepers of a CPU: what a program waits for, and what the kernel sends beside it
)

// DefaultKeepers is how many keepers there should be on a machine with so many CPUs, 0 if the runtime sends no signals to threads that are to stop.
func DefaultKeepers(cpus int) int {
	if strings.Contains(os.Getenv("GODEBUG"), "asyncpreemptoff=1") {
		return 0
	}
	return min(processorsOf*cpus, 16)
}

// waits is what a server notes of its waits.
type waits struct {
	quick  int           // quick ones in a row, quickEnough at most
	waited time.Duration // since the last request
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
	s.count(time.Since(start), s.ring.Ready())
	return err
}

// count takes note of a wait, of which a signal may have been the end.
func (w *waits) count(d time.Duration, ready bool) {
	w.waited += d
	most := quickWait
	if w.quick >= quickEnough {
		most = keepWait
	}
	switch {
	case w.waited >= most:
		w.quick = 0
	case ready:
		w.quick = min(w.quick+1, quickEnough)
	}
	if ready {
		w.waited = 0
	}
}

// keep makes the calling thread a keeper if there can be one more.
func (t *Transport) keep() bool {
	if int(t.keepers.Add(1)) <= t.opt.Keepers {
		return true
	}
	t.keepers.Add(-1)
	return false
}
