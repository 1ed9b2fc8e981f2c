// Package affinity binds a thread to a CPU, and frees it again. Who sets a thread's CPUs from outside (taskset -p, a cpuset) has the last word: what a
// thread was given so is where it may run from then on. See sched_setaffinity(2) and cpuset(7).
package affinity

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Nowhere is the CPU of a thread that is not bound.
const Nowhere = -1

// Thread is a thread that is bound to one CPU at most. Only that thread uses it, but for Set. The zero Thread may run nowhere.
type Thread struct {
	allowed unix.CPUSet  // where it may run
	on      atomic.Int32 // the CPU to which it is bound, and one more; 0: it is not
}

// Begin makes it the calling goroutine's thread, which it keeps, and which is not bound yet.
func (t *Thread) Begin() {
	t.on.Store(0)
	t.heed()
}

// CPU is the one to which the thread is bound, or Nowhere.
func (t *Thread) CPU() int { return int(t.on.Load()) - 1 }

// May says whether the thread may run on a CPU, as far as it knows.
func (t *Thread) May(cpu int) bool { return t.allowed.IsSet(cpu) }

// Bind has the thread run on one CPU only. It reports false, and leaves the thread as it is, where it may not, or the kernel refuses.
func (t *Thread) Bind(cpu int) bool {
	if t.CPU() == cpu {
		return true
	}
	t.heed()
	if !t.May(cpu) {
		return false
	}
	set, before := only(cpu), t.on.Swap(int32(cpu)+1) // before it is: Set says so from then on
	if unix.SchedSetaffinity(0, &set) != nil {
		t.on.Store(before)
		return false
	}
	return true
}

// Free has the thread run wherever it may.
func (t *Thread) Free() {
	if t.on.Load() == 0 {
		return
	}
	t.heed()
	_ = unix.SchedSetaffinity(0, &t.allowed)
	t.on.Store(0)
}

// Set is for another thread that lets this one go: the CPU to which it is bound, or Nowhere, and where it may run.
//
//go:nosplit
//go:norace
func (t *Thread) Set() (cpu int, allowed *unix.CPUSet) { return int(t.on.Load()) - 1, &t.allowed }

// heed takes what the thread was given from outside, if it has not what it gave itself, for what is allowed.
func (t *Thread) heed() {
	var now unix.CPUSet
	if unix.SchedGetaffinity(0, &now) != nil {
		return
	}
	left := t.allowed
	if t.on.Load() != 0 {
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
