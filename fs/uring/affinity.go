package uring

import "golang.org/x/sys/unix"

// A server's thread runs on its queue's CPU, where the program waits that made the request: to wake another CPU can cost more than the
// request. Large reads that come together are different. The kernel reads ahead for one program on one CPU, so they all come to one queue;
// the second of them at a time is handled wherever there is room.

// readTogether is from how many bytes on a READ counts as a large one.
const readTogether = 64 << 10

// Who sets a thread's CPUs from outside (taskset -p, a cpuset) has the last word. A thread that stays is left as it is; one that leaves its CPU, or comes back, looks first whether it still
// has what it gave itself.

// beginLargeRead lets the thread leave its CPU if another server of the queue has a large READ, too. The caller calls endLargeRead.
func (s *server) beginLargeRead() {
	if s.q.largeReads.Add(1) == 1 || !s.bound {
		return
	}
	s.bound, s.left = false, true
	s.idle.Leave()
	if !s.heed(only(s.q.cpu)) {
		_ = unix.SchedSetaffinity(0, &s.allowed)
	}
}

func (s *server) endLargeRead() { s.q.largeReads.Add(-1) }

// stay has the thread run on its queue's CPU. It is slower, but no error, when that does not work: in a cpuset without it. Where it is not allowed,
// by taskset or a unit's CPUAffinity=, it is not tried.
func (s *server) stay() {
	if s.bound || !s.q.online {
		return
	}
	if s.left {
		s.left = false
		s.heed(s.allowed)
	}
	if !s.allowed.IsSet(s.q.cpu) {
		return
	}
	s.bound = true
	set := only(s.q.cpu)
	_ = unix.SchedSetaffinity(0, &set)
}

// heed takes what the thread was given from outside, if it has not what it was left with, for what is allowed.
func (s *server) heed(left unix.CPUSet) bool {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) != nil || now == left {
		return false
	}
	s.allowed = now
	return true
}

func only(cpu int) (set unix.CPUSet) {
	set.Set(cpu)
	return set
}
