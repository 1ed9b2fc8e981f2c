package share

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/thread"
)

// queue is from where a ring's workers take batches, in the order in which these came, and where workers wait that have nothing to do.
//
// A batch is not given to a certain worker: one that waits is woken, and who looks first has the first batch. Threads come when they like, so else the first
// batch would often end last, and a client that reads ahead waits for the first.
//
// Go wakes goroutines one after the other: a thread that has found one to run wakes the next thread. The last of eight begins 0.2 to 1 ms after it was
// woken, in which they would fill 16 MiB of a stage. So a worker first waits as a thread, in a system call: such threads are woken at once, and come side
// by side. After idleThread, or while enough others do, it waits as a goroutine.
type queue struct {
	mu      sync.Mutex
	taken   sync.Cond // a batch was taken; with mu
	batches []batch   // fields from here on are protected by mu
	first   int       // of batches: those before it were taken
	count   uint64    // how many batches were taken
	ended   bool
	// Workers that wait, as threads and as goroutines. Who came last is woken first.
	threads, goroutines []*waiter

	asThread time.Duration // idleThread
}

// waiter is how a worker waits.
type waiter struct {
	thread    atomic.Uint32 // asleep or awake
	goroutine chan struct{} // of capacity 1
}

const asleep, awake = 0, 1

func newWaiter() *waiter { return &waiter{goroutine: make(chan struct{}, 1)} }

const (
	// idleThread is how long a worker waits as a thread: longer than a program computes between two batches. Until the Go runtime needs it elsewhere such a
	// thread has a Go processor.
	idleThread = time.Second
	// threadsLeast is of how many processors threads that wait may have half.
	threadsLeast = 8
)

func newQueue() *queue {
	q := &queue{asThread: idleThread}
	q.taken.L = &q.mu
	return q
}

// offer has a worker that waits take a batch, and says whether there is one.
func (q *queue) offer(b batch) bool {
	q.mu.Lock()
	w, thread := q.idleLocked()
	if w != nil {
		q.batches = append(q.batches, b)
	}
	q.mu.Unlock()
	if w != nil {
		w.wake(thread)
	}
	return w != nil
}

// add adds a batch for which a worker is about to begin.
func (q *queue) add(b batch) {
	q.mu.Lock()
	q.batches = append(q.batches, b)
	q.mu.Unlock()
}

// pass returns when a worker has taken the batch.
func (q *queue) pass(b batch) {
	q.mu.Lock()
	q.batches = append(q.batches, b)
	all := q.count + uint64(len(q.batches)-q.first)
	if w, thread := q.idleLocked(); w != nil {
		q.mu.Unlock()
		w.wake(thread)
		q.mu.Lock()
	}
	for q.count < all {
		q.taken.Wait()
	}
	q.mu.Unlock()
}

// take waits for a batch. It returns false if there is none and no more will come, or the worker's place has become another ring's: moved. Even then
// there may be a last one. threads counts the workers of all rings that wait as threads.
func (q *queue) take(w *waiter, threads *atomic.Int32, wanted wants) (b batch, ok, moved bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.first < len(q.batches) {
			b, q.batches[q.first] = q.batches[q.first], batch{}
			q.count++
			if q.first++; q.first == len(q.batches) {
				q.batches, q.first = q.batches[:0], 0
			}
			q.taken.Broadcast()
			return b, true, moved
		}
		if q.ended || moved {
			return batch{}, false, moved
		}
		if q.waitAsThread(w, threads) {
			continue
		}
		q.goroutines = append(q.goroutines, w)
		q.mu.Unlock()
		select {
		case <-w.goroutine:
		case <-wanted[0]:
			moved = true
		case <-wanted[1]:
			moved = true
		case <-wanted[2]:
			moved = true
		}
		q.mu.Lock()
		if moved && !remove(&q.goroutines, w) {
			<-w.goroutine // it was woken just now, for a batch that may wait for it
		}
	}
}

// waitAsThread says whether the worker has been woken. Else it may not wait so, or has done so for long enough.
func (q *queue) waitAsThread(w *waiter, threads *atomic.Int32) bool {
	if processors < threadsLeast {
		return false
	}
	defer threads.Add(-1)
	if int(threads.Add(1)) > processors/2 {
		return false
	}
	w.thread.Store(asleep)
	q.threads = append(q.threads, w)
	q.mu.Unlock()
	w.sleep(q.asThread)
	q.mu.Lock()
	return !remove(&q.threads, w)
}

// idleLocked takes a worker that waits from the list, if there is one: it is to be woken.
func (q *queue) idleLocked() (w *waiter, thread bool) {
	if w = last(&q.threads); w != nil {
		return w, true
	}
	return last(&q.goroutines), false
}

func last(all *[]*waiter) (w *waiter) {
	if at := len(*all) - 1; at >= 0 {
		w, (*all)[at] = (*all)[at], nil
		*all = (*all)[:at]
	}
	return w
}

// remove says whether w was there.
func remove(all *[]*waiter, w *waiter) bool {
	at := slices.Index(*all, w)
	if at >= 0 {
		*all = slices.Delete(*all, at, at+1)
	}
	return at >= 0
}

// end ends workers that find no more batches.
func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	for w, thread := q.idleLocked(); w != nil; w, thread = q.idleLocked() {
		w.wake(thread)
	}
	q.mu.Unlock()
}

// wake wakes a worker that waits. One that waits as a thread may have waited for long enough meanwhile, and have looked by itself: it looks once more.
func (w *waiter) wake(asThread bool) {
	if !asThread {
		w.goroutine <- struct{}{}
		return
	}
	w.thread.Store(awake)
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.thread)), thread.FutexWake, 1, 0, 0, 0)
}

// sleep waits as a thread, until it is woken or has waited for so long.
func (w *waiter) sleep(most time.Duration) {
	for end := time.Now().Add(most); w.thread.Load() == asleep; {
		left := time.Until(end)
		if left <= 0 {
			return
		}
		t := unix.NsecToTimespec(int64(left))
		unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&w.thread)), thread.FutexWait, asleep, uintptr(unsafe.Pointer(&t)), 0, 0)
	}
}
