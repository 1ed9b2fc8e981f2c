package uring

import (
	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// A server's thread runs on its queue's CPU, where the program waits that made the request: to wake another CPU can cost more than the
// request. There are two exceptions.
//
//   - The kernel reads ahead for one program on one CPU, so large reads that come together all come to one queue;
//     the second of them at a time is handled wherever there is room.
//   - A real-time program may wait without sleeping (io_getevents, a ring), and then the kernel lets a thread of its CPU run for 50 ms of each second. So the thread that has
//     answered such a program, which gets the next request, waits for it wherever there is room. The first request may wait for a second.

// readTogether is from how many bytes on a READ counts as a large one.
const readTogether = 64 << 10

// bound says whether the thread runs on its queue's CPU only.
func (s *server) bound() bool { return s.thread.CPU() != affinity.Nowhere }

// beginLargeRead lets the thread leave its CPU if another server of the queue has a large READ, too. The caller calls endLargeRead.
func (s *server) beginLargeRead() {
	if s.q.largeReads.Add(1) == 1 || !s.bound() {
		return
	}
	s.idle.Leave()
	s.thread.Free()
}

func (s *server) endLargeRead() { s.q.largeReads.Add(-1) }

// stay has the thread run on its queue's CPU. It is slower, but no error, when that does not work: in a cpuset without it, or where it is not allowed
// by taskset or a unit's CPUAffinity=.
func (s *server) stay() {
	if s.q.online {
		s.thread.Bind(s.q.cpu)
	}
}

// place has the thread run where a request that is no large READ is best answered, and the next one best waited for.
func (s *server) place(program uint32) {
	if s.program.realTime(program) {
		s.idle.Leave()
		s.thread.Free()
	} else {
		s.stay()
	}
}

// program is the one that made a server's last request.
type program struct {
	thread uint32
	n      int // its requests in a row
	real   bool
}

// askAgain is after how many requests a program is asked again: it may have become a real-time one.
const askAgain = 32

func (p *program) realTime(thread uint32) bool {
	if thread != p.thread || p.n%askAgain == 0 {
		*p = program{thread: thread, real: schedidle.RealTime(thread)}
	}
	p.n++
	return p.real
}
