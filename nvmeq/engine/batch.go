package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// batch is one call of Do.
type batch struct {
	cmds []Command
	next int           // of cmds to post; protected by lane.drive
	left int           // commands not ended; likewise
	done atomic.Bool   // set by the driver after its last access to the batch
	wake chan struct{} // "look again", for a caller that waits
	poll bool          // its caller does not wait but looks by itself; protected by lane.mu
}

func (b *batch) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// checkOpen is what a caller does next who was counted in: it counts itself out if the engine is closed.
func (l *lane) checkOpen(weight int64) error {
	if l.e.closed.Load() {
		l.load.Add(-weight)
		return fmt.Errorf("nvmeq: %s: %w", l.e.c.Name(), ErrClosed)
	}
	return nil
}

// submit leaves commands with the lane as a batch of their own; the caller gives it back with drop.
func (l *lane) submit(cmds []Command, poll bool) *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b *batch
	if n := len(l.free); n > 0 {
		b, l.free = l.free[n-1], l.free[:n-1]
	} else {
		b = &batch{wake: make(chan struct{}, 1)}
	}
	b.cmds, b.next, b.left, b.poll = cmds, 0, len(cmds), poll
	b.done.Store(false)
	l.batches = append(l.batches, b)
	return b
}

// recycle takes a batch back that is done.
func (l *lane) recycle(b *batch) {
	l.mu.Lock()
	l.free = append(l.free, b)
	l.mu.Unlock()
}

// end takes a batch that has ended off the list and tells its caller.
func (l *lane) end(b *batch) {
	l.mu.Lock()
	if i := slices.Index(l.batches, b); i >= 0 {
		l.batches = slices.Delete(l.batches, i, i+1)
	}
	// Under mu, so that handOver cannot nudge a batch whose owner already uses it for another call.
	b.cmds = nil
	b.done.Store(true)
	b.wakeUp()
	l.mu.Unlock()
}
