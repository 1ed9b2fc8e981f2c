package thread

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Cond is a sync.Cond for goroutines of which many are locked to their threads. To Go's scheduler such a goroutine is dear: to let it wait takes another thread, which is woken to run
// what else there is, and to let it go on a third, which finds it and passes its own Go processor to it. Here it waits for a word in the kernel, as in any system call (futex(2)), and who wakes it
// wakes that one thread.
//
// All methods are called with the lock held.
type Cond struct {
	lock        sync.Locker
	others      sync.Cond
	n           int     // of those
	first, last *waiter // the locked ones, in the order in which they came
}

// waiter is a locked goroutine that waits.
type waiter struct {
	woken atomic.Uint32
	next  *waiter
}

var waiters = sync.Pool{New: func() any { return new(waiter) }}

// NewCond makes a Cond with its lock.
func NewCond(lock sync.Locker) *Cond {
	c := new(Cond)
	c.Init(lock)
	return c
}

// Init is NewCond for a Cond that is part of something.
func (c *Cond) Init(lock sync.Locker) { c.lock, c.others.L = lock, lock }

// Wait unlocks, waits to be woken, and locks.
func (c *Cond) Wait() {
	if !Locked() {
		c.n++
		c.others.Wait()
		c.n--
		return
	}
	w := waiters.Get().(*waiter)
	w.woken.Store(0)
	w.next = nil
	if c.first == nil {
		c.first = w
	} else {
		c.last.next = w
	}
	c.last = w
	c.lock.Unlock()
	for w.woken.Load() == 0 {
		w.sleep()
	}
	waiters.Put(w) // who wakes it may do so yet once more, for nothing: the next one that has it looks again
	c.lock.Lock()
}

// Signal wakes one that waits, if there is one: a locked one first.
func (c *Cond) Signal() {
	w := c.first
	if w == nil {
		c.others.Signal()
		return
	}
	c.first = w.next
	w.wake()
}

// Broadcast wakes all that wait.
func (c *Cond) Broadcast() { wakeAll(c.take()) }

// BroadcastUnlocked is Broadcast, and unlocks meanwhile: those that it wakes want the lock.
func (c *Cond) BroadcastUnlocked() {
	w := c.take()
	if w == nil {
		return
	}
	c.lock.Unlock()
	wakeAll(w)
	c.lock.Lock()
}

// take takes all locked ones off the list, and wakes the others.
func (c *Cond) take() *waiter {
	if c.n > 0 {
		c.others.Broadcast()
	}
	w := c.first
	c.first = nil
	return w
}

// wakeAll wakes a list of them.
func wakeAll(w *waiter) {
	for w != nil {
		next := w.next // which is another list's as soon as it is woken
		w.wake()
		w = next
	}
}

// sleep waits to be woken; signals of the Go runtime end it, too.
func (w *waiter) sleep() {
	Block()
	Call(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.woken)), FutexWait, 0, 0, 0, 0)
	Leave()
}

func (w *waiter) wake() {
	w.woken.Store(1)
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.woken)), FutexWake, 1, 0, 0, 0)
}
