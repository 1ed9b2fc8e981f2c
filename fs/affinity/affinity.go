// Package affinity binds a thread to a CPU, and frees it again. Who sets a thread's CPUs from outside (taskset -p, a cpuset) has the last word: what a
// thread was given so is where it may run from then on. See sched_setaffinity(2) and cpuset(7).
package affinity

import "golang.org/x/sys/unix"

// Nowhere is the CPU of a thread that is not bound.
const Nowhere = -1

// Thread is a thread that is bound to one CPU at most. Only that thread uses it. The zero Thread may run nowhere.
type Thread struct {
	allowed unix.CPUSet // where it may run
	on      int         // the CPU to which it is bound, and one more; 0: it is not
}

// Current is the calling goroutine's thread, which it keeps; it is not bound yet.
func Current() Thread {
	var t Thread
	t.heed()
	return t
}

// CPU is the one to which the thread is bound, or Nowhere.
func (t *Thread) CPU() int { return t.on - 1 }

// May says whether the thread may run on a CPU, as far as it knows.
func (t *Thread) May(cpu int) bool { return t.allowed.IsSet(cpu) }

// Bind has the thread run on one CPU only. It reports false, and leaves the thread as it is, where it may not, or the kernel refuses.
func (t *Thread) Bind(cpu int) bool {
	if t.CPU() == cpu {
		return true
	}
	t.heed()
	set := only(cpu)
	if !t.May(cpu) || unix.SchedSetaffinity(0, &set) != nil {
		return false
	}
	t.on = cpu + 1
	return true
}

// Free has the thread run wherever it may.
func (t *Thread) Free() {
	if t.on == 0 {
		return
	}
	t.heed()
	_ = unix.SchedSetaffinity(0, &t.allowed)
	t.on = 0
}

// heed takes what the thread was given from outside, if it has not what it gave itself, for what is allowed.
func (t *Thread) heed() {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) != nil {
		return
	}
	left := t.allowed
	if t.on != 0 {
		left = only(t.CPU())
	}
	if now != left {
		t.allowed = now
	}
}

func only(cpu int) (set unix.CPUSet) {
	set.Set(cpu)
	return set
}
