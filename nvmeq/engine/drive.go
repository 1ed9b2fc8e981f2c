package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// How a batch gets done:
//
//  1. push: the caller leaves its batch with the lane                            (parallel)
//  2. wait: if nobody drives the lane, the caller does; else it sleeps           (one driver per lane)
//  3. turn, by the driver, over and over, for every batch of the lane:
//     a. fill: retries and unposted commands become work items
//     b. kick: the kernel code posts, rings, reaps
//     c. drain: results end commands; the last command of a batch wakes its caller
//     d. a software controller works on the queue pair
//  4. a driver whose own batch is done passes the lane to a caller still waiting
//
// So a lone request needs no other thread, concurrent ones share the queue pair's depth, and an idle lane has nobody.

// batch is one call of Do.
type batch struct {
	cmds []Command
	next int           // of cmds to post; protected by lane.drive
	left int           // commands not ended; likewise
	done atomic.Bool   // set by the driver after its last access to the batch
	wake chan struct{} // "look again", for a caller that waits
	poll bool          // its caller does not wait but looks by itself; protected by lane.mu
}

func (b *batch) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// entered is what a caller does next who was counted in: it counts itself out if the engine is closed.
func (l *lane) entered(weight int64) error {
	if l.e.closed.Load() {
		l.load.Add(-weight)
		return fmt.Errorf("nvmeq: %s: %w", l.e.c.Name(), ErrClosed)
	}
	return nil
}

// push leaves commands with the lane as a batch of their own; the caller gives it back with drop.
func (l *lane) push(cmds []Command, poll bool) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b *batch
	if n := len(l.spare); n > 0 {
		b, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		b = &batch{wake: make(chan struct{}, 1)}
	}
	b.cmds, b.next, b.left, b.poll = cmds, 0, len(cmds), poll
	b.done.Store(false)
	l.batches = append(l.batches, b)
	return b
}

// drop takes a batch back that is done.
func (l *lane) drop(b *batch) {
	l.mu.Lock()
	l.spare = append(l.spare, b)
	l.mu.Unlock()
}

// pop takes a batch that has ended off the list and tells its caller.
func (l *lane) pop(b *batch) {
	l.mu.Lock()
	if i := slices.Index(l.batches, b); i >= 0 {
		l.batches = slices.Delete(l.batches, i, i+1)
	}
	// Under mu, so that pass cannot nudge a batch whose owner already uses it for another call.
	b.cmds = nil
	b.done.Store(true)
	b.nudge()
	l.mu.Unlock()
}

// wait returns when b is done.
func (l *lane) wait(b *batch) {
	c := l.e.c
	for !b.done.Load() {
		if c.Resetting() {
			c.AwaitReset()
		}
		if !l.drive.TryLock() {
			<-b.wake // done, or our turn to drive
			continue
		}
		gen, err := l.run(b)
		l.pass()
		if err != nil {
			c.Recover(gen, err)
		}
	}
}

// run drives the lane until b is done, the controller is to be reset by someone else, or the lane needs that reset.
func (l *lane) run(b *batch) (gen uint32, err error) {
	c := l.e.c
	gen = c.Generation()
	w := l.e.pace()
	defer w.End()
	for !b.done.Load() {
		if c.Resetting() {
			return gen, nil
		}
		progress := l.turn()
		if l.broken != nil {
			return gen, l.broken
		}
		if progress {
			w.Progress()
		} else {
			w.Idle()
		}
	}
	return gen, nil
}

// pass gives the lane up and, if batches are left, wakes one caller to drive on.
func (l *lane) pass() {
	l.drive.Unlock()
	// After the unlock: a caller that failed to take drive before it has pushed its batch even earlier, so we see it.
	l.mu.Lock()
	for _, b := range l.batches {
		if !b.poll {
			b.nudge()
			break
		}
	}
	l.mu.Unlock()
}

// turn is one round of step 3. It says whether anything happened.
func (l *lane) turn() bool {
	if err := l.e.c.Err(); err != nil {
		l.failAll(err)
		return true
	}
	if l.broken != nil {
		return false
	}
	progress := l.fill()
	if err := l.kick(); err != nil {
		l.broken = err
		return false
	}
	if l.drain() > 0 {
		progress = true
		l.heard = time.Time{}
	}
	if len(l.limbo) > 0 {
		l.climb()
		return true
	}
	if l.outstanding() == 0 {
		return progress
	}
	if l.e.c.Step(l.qid) {
		return true
	}
	if l.idle++; progress {
		l.idle = 0
	} else if l.idle%hungEvery == 0 {
		l.checkHung()
	}
	return progress
}

// fill posts what is to be posted, as far as there is room, and says whether it posted any.
func (l *lane) fill() bool {
	first := l.workPos
	if len(l.retry) > 0 && (l.retryAfter.IsZero() || time.Now().After(l.retryAfter)) {
		l.retryAfter = time.Time{}
		n := 0
		for n < len(l.retry) && l.post(l.retry[n]) {
			n++
		}
		l.retry = slices.Delete(l.retry, 0, n)
	}
	l.mu.Lock()
	for _, b := range l.batches {
		for b.next < len(b.cmds) && l.post(slot{b, b.next}) {
			b.next++
		}
		if b.next < len(b.cmds) {
			break // no room
		}
	}
	l.mu.Unlock()
	return l.workPos != first
}

// hungEvery is how many turns pass without anything before the clock is read: a turn takes about as long as reading it.
const hungEvery = 16

// checkHung finds a lane that no longer answers at all, not even with a timeout.
func (l *lane) checkHung() {
	now := time.Now()
	if l.heard.IsZero() {
		l.heard = now
		return
	}
	limit := l.e.cfg.Timeout
	if l.load.Load() >= flushWeight {
		limit = l.e.timeout(nvme.IOFlush)
	}
	if limit += l.e.cfg.Silence; now.Sub(l.heard) > limit {
		l.broken = controller.RuntimeError{Err: fmt.Errorf("lane %d has not answered for %v: its kernel does not run", l.index, limit)}
	}
}

// failAll ends every command of the lane with err. The controller is out of service.
func (l *lane) failAll(err error) {
	if !l.deaf.Load() {
		l.recall()
	}
	for tag, s := range l.slots { // a lane that does not even answer to LANEFS_FAIL
		if s.b != nil {
			l.slots[tag] = slot{}
			l.limbo = append(l.limbo, lost{slot: s})
		}
	}
	for _, s := range l.limbo {
		l.finish(s.slot, fmt.Errorf("nvmeq: %s: %w", s.cmd(), err))
	}
	for _, s := range l.retry {
		l.finish(s, fmt.Errorf("nvmeq: %s: %w", s.cmd(), err))
	}
	l.limbo, l.retry = l.limbo[:0], l.retry[:0]
	l.mu.Lock()
	left := slices.Clone(l.batches)
	l.mu.Unlock()
	for _, b := range left {
		// The batch is its owner's again as soon as its last command is finished.
		for i, n := b.next, len(b.cmds); i < n; i++ {
			b.next = n
			l.finish(slot{b, i}, fmt.Errorf("nvmeq: %s: %w", &b.cmds[i], err))
		}
	}
}

// recall makes the lane answer everything it has, completed or not.
func (l *lane) recall() {
	atomic.StoreUint32(&l.control.Command, kernels.CommandFail)
	if err := l.e.drv.answered(l); err != nil {
		l.deaf.Store(true)
		l.e.c.Log().Error("the lane does not answer", "device", l.e.c.Name(), "lane", l.index, "error", err.Error())
	}
}

// spread is Do over n lanes. The caller drives each in turn, as far as nobody else does.
func (e *Engine) spread(cmds []Command, n int) error {
	type part struct {
		l      *lane
		b      *batch
		weight int64
	}
	parts := make([]part, 0, n)
	first := e.pick(AnyLane).index
	for i := range n {
		l := e.lanes[(first+i)%len(e.lanes)]
		mine := cmds[i*len(cmds)/n : (i+1)*len(cmds)/n]
		weight := weigh(mine)
		l.load.Add(weight)
		if err := l.entered(weight); err != nil {
			for j := i * len(cmds) / n; j < len(cmds); j++ {
				cmds[j].Err = err
			}
			break
		}
		parts = append(parts, part{l, l.push(mine, true), weight})
	}
	w := e.pace()
	defer w.End()
	for left := len(parts); left > 0; {
		progress := false
		left = 0
		for _, p := range parts {
			if p.b.done.Load() {
				continue
			}
			left++
			if e.c.Resetting() {
				e.c.AwaitReset()
			}
			if !p.l.drive.TryLock() {
				continue
			}
			gen := e.c.Generation()
			progress = p.l.turn() || progress
			err := p.l.broken
			p.l.pass()
			if err != nil {
				e.c.Recover(gen, err)
			}
		}
		if progress {
			w.Progress()
		} else if left > 0 {
			w.Idle()
		}
	}
	for _, p := range parts {
		p.l.drop(p.b)
		p.l.load.Add(-p.weight)
	}
	return firstErr(cmds)
}
