package softctl

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// threads serve the I/O queues when Options.Threads asks for it: for lanes on a device, which ring
// doorbells without calling Step. Thread i of n has the queues i+1, i+1+n, and so on. A thread polls while there is something to do and a
// little longer, then sleeps; a caller that waits for a queue calls Step, which wakes its thread. The admin queue stays
// with its callers.
type threads struct {
	all  []thread
	stop chan struct{}
	done sync.WaitGroup
}

type thread struct {
	wake   chan struct{}
	asleep atomic.Bool
	batch  *batch
	_      [40]byte // a cache line each
}

const (
	threadSpins = 64                     // polls in a row before it lets others run
	threadAwake = 500 * time.Microsecond // how long it polls for nothing
)

func (c *Controller) startThreads(n int) {
	n = min(n, len(c.sq)-1)
	if n <= 0 {
		return
	}
	c.threads = &threads{all: make([]thread, n), stop: make(chan struct{})}
	for i := range c.threads.all {
		c.threads.all[i].wake = make(chan struct{}, 1)
		c.threads.all[i].batch = newBatch(c.opt.Mover)
		c.threads.done.Go(func() { c.runThread(i) })
	}
}

// stopThreads returns when no thread touches a queue any more.
func (c *Controller) stopThreads() {
	if c.threads == nil {
		return
	}
	close(c.threads.stop)
	c.threads.done.Wait()
	for i := range c.threads.all {
		c.threads.all[i].batch.close()
	}
}

// nudge wakes the thread of a queue.
func (t *threads) nudge(sqid uint16) {
	th := &t.all[(int(sqid)-1)%len(t.all)]
	if th.asleep.Load() {
		select {
		case th.wake <- struct{}{}:
		default:
		}
	}
}

func (c *Controller) runThread(i int) {
	t := c.threads
	th := &t.all[i]
	idle, since := 0, time.Now()
	for {
		if c.sweep(i) {
			idle = 0
			continue
		}
		if idle++; idle%threadSpins != 0 {
			continue
		}
		select {
		case <-t.stop:
			return
		default:
		}
		if idle == threadSpins {
			since = time.Now()
		}
		if time.Since(since) < threadAwake {
			runtime.Gosched()
			continue
		}
		if c.awaitAny(i) { // a block device is at work
			continue
		}
		// This sweep finds doorbells that were rung before asleep was set. A caller that waits after it calls Step, which nudges.
		th.asleep.Store(true)
		if !c.sweep(i) && !c.awaitAny(i) {
			select {
			case <-th.wake:
			case <-t.stop:
				return
			}
		}
		th.asleep.Store(false)
		idle = 0
	}
}

// sweep steps every queue of thread i, and settles the batch of them all. It locks further queues while it holds some: nobody else
// holds two.
func (c *Controller) sweep(i int) bool {
	did, b := false, c.threads.all[i].batch
	for id := i + 1; id < len(c.sq); id += len(c.threads.all) {
		q := c.sq[id].Load()
		if q == nil || q.here.Load() {
			continue
		}
		q.mu.Lock()
		if !q.dead && c.now() == stateReady && c.serve(q, b) {
			did = true
		}
		if q.deferred > 0 {
			b.lock(q)
		} else {
			q.mu.Unlock()
		}
	}
	if b != nil {
		b.settle(c)
		b.unlock()
	}
	return did
}

// awaitAny gives a block device time, if a queue of thread i waits for it.
func (c *Controller) awaitAny(i int) bool {
	for id := i + 1; id < len(c.sq); id += len(c.threads.all) {
		if q := c.sq[id].Load(); q != nil && q.await() {
			return true
		}
	}
	return false
}
