package uring

import "golang.org/x/sys/unix"

// A server's thread runs on its queue's CPU, where the program waits that made the request: to wake another CPU can cost more than the
// request. Large reads that come together are different. The kernel reads ahead for one program on one CPU, so they all come to one queue;
// the second of them at a time is handled wherever there is room.

// readTogether is from how many bytes on a READ counts as a large one.
const readTogether = 64 << 10

// beginLargeRead lets the thread leave its CPU if another server of the queue has a large READ, too. The caller calls endLargeRead.
func (s *server) beginLargeRead() {
	if s.q.largeReads.Add(1) > 1 && s.bound {
		s.bound = false
		s.idle.Leave()
		_ = unix.SchedSetaffinity(0, &s.allowed)
	}
}

func (s *server) endLargeRead() { s.q.largeReads.Add(-1) }

// stay has the thread run on its queue's CPU. It is slower, but no error, when that does not work: in a cpuset without it. Where it was not allowed when
// the daemon started, by taskset or a unit's CPUAffinity=, it is not tried.
func (s *server) stay() {
	if s.bound || !s.q.online || !s.allowed.IsSet(s.q.cpu) {
		return
	}
	s.bound = true
	var set unix.CPUSet
	set.Set(s.q.cpu)
	_ = unix.SchedSetaffinity(0, &set)
}
