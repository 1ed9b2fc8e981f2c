package uring

import "github.com/lanefs/lanefs/fs/affinity"

// A server's thread runs on its queue's CPU, where the program waits that made the request: to wake another CPU can cost more than the
// request. Large reads that come together are different. The kernel reads ahead for one program on one CPU, so they all come to one queue;
// the second of them at a time is handled wherever there is room.

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
