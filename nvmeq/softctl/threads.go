package softctl

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// threads serve the I/O queues when Options.Threads asks for it: for lanes on a device, which ring doorbells without calling Step. They are
// in groups, sweepers at most; queue i belongs to group (i-1) modulo the groups. One thread of a group sweeps all its queues, so that their
// small commands are one batch (batch.go). Before it does something long it leaves that to the next of its group. It polls while there
// is something to do and a little longer, then sleeps; a caller that waits for a queue calls Step, which wakes it. The admin queue stays with
// its callers.
type threads struct {
	groups  []group
	batches []*batch // one for each thread
	stop    chan struct{}
	done    sync.WaitGroup
}

type group struct {
	sweep  sync.Mutex // held by the thread that sweeps
	wake   chan struct{}
	asleep atomic.Bool
	_      [40]byte // a cache line each
}

// sweepers is so many that one's launches and waits leave the bus to others', and so few that their batches are large.
const sweepers = 4

const (
	threadSpins = 64                     // polls in a row before it lets others run
	threadAwake = 500 * time.Microsecond // how long it polls for nothing after it did something
)

func (c *Controller) startThreads(n int) {
	n = min(n, len(c.sq)-1)
	if n <= 0 {
		return
	}
	t := &threads{groups: make([]group, min(n, sweepers)), batches: make([]*batch, n), stop: make(chan struct{})}
	c.threads = t
	for i := range t.groups {
		t.groups[i].wake = make(chan struct{}, 1)
	}
	for i := range t.batches {
		g := i % len(t.groups)
		b := newBatch(c.opt.Mover)
		b.sweep = &t.groups[g].sweep
		t.batches[i] = b
		t.done.Go(func() { c.runThread(g, b) })
	}
}

// stopThreads returns when no thread touches a queue any more.
func (c *Controller) stopThreads() {
	if c.threads == nil {
		return
	}
	close(c.threads.stop)
	c.threads.done.Wait()
	for _, b := range c.threads.batches {
		b.close()
	}
}

// nudge wakes the thread that sweeps a queue.
func (t *threads) nudge(sqid uint16) {
	g := &t.groups[(int(sqid)-1)%len(t.groups)]
	if g.asleep.Load() {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

func (c *Controller) runThread(i int, b *batch) {
	t := c.threads
	th := &t.groups[i]
	th.sweep.Lock()
	defer th.sweep.Unlock()
	p := patience{awake: threadAwake}
	for {
		if c.sweep(i, b) {
			p.did()
			continue
		}
		if !p.look() {
			continue
		}
		select {
		case <-t.stop:
			return
		default:
		}
		if !p.over(time.Now()) {
			runtime.Gosched()
			continue
		}
		if c.awaitAny(i) { // a block device is at work
			continue
		}
		// This sweep finds doorbells that were rung before asleep was set. A caller that waits after it calls Step, which nudges.
		th.asleep.Store(true)
		if !c.sweep(i, b) && !c.awaitAny(i) {
			select {
			case <-th.wake:
			case <-t.stop:
				return
			}
		}
		th.asleep.Store(false)
		p.woke()
	}
}

// patience is how long a thread polls for nothing before it sleeps. Who waits for a command that takes long wakes it again and again: each time that it was woken
// for nothing it polls half as long.
type patience struct {
	polls int           // for nothing, in a row
	since time.Time     // when it read the clock first since
	awake time.Duration // how long it polls from then on
}

// did says that a poll has found something to do.
func (p *patience) did() { p.polls, p.awake = 0, threadAwake }

// look counts a poll for nothing, and says whether it is time to look at the clock, and whether to stop.
func (p *patience) look() bool {
	p.polls++
	return p.polls%threadSpins == 0
}

// over says whether the thread has polled for nothing long enough.
func (p *patience) over(now time.Time) bool {
	if p.polls == threadSpins {
		p.since = now
	}
	return now.Sub(p.since) >= p.awake
}

// woke says that the thread has slept.
func (p *patience) woke() { p.polls, p.awake = 0, p.awake/2 }

// sweep steps every queue of group i, and settles the batch of them all. It locks further queues while it holds some, without waiting:
// who has one rings or nudges later. The caller holds the group's sweep, also afterwards, but perhaps not meanwhile.
func (c *Controller) sweep(i int, b *batch) bool {
	did, groups := false, c.threads.groups
	for id := i + 1; id < len(c.sq); id += len(groups) {
		q := c.sq[id].Load()
		if q == nil || q.here.Load() || !q.mu.TryLock() {
			continue
		}
		if !q.dead && c.now() == stateReady && c.serve(q, b) {
			did = true
		}
		if b.left {
			b.settle(c)
			q.mu.Unlock()
			c.threads.nudge(uint16(id)) // for what was rung meanwhile
			b.sweep.Lock()
			b.left = false
			return true
		}
		if q.deferred > 0 {
			b.lock(q)
		} else {
			q.mu.Unlock()
		}
	}
	b.settle(c)
	b.unlock()
	return did
}

// awaitAny gives a block device time, if a queue of group i waits for it.
func (c *Controller) awaitAny(i int) bool {
	for id := i + 1; id < len(c.sq); id += len(c.threads.groups) {
		if q := c.sq[id].Load(); q != nil && q.await() {
			return true
		}
	}
	return false
}
