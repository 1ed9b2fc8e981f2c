package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// batch is the commands of one call of Do, or the part of them that Spread gives to a lane.
type batch struct {
	cmds []Command
	next int           // of cmds to post; protected by lane.drive
	left int           // commands not ended; likewise
	done atomic.Bool   // set by the driver after its last access to the batch
	wake chan struct{} // for a caller that waits: the batch is done, or the caller is to drive the lane
	poll bool          // its caller does not wait for wake but polls done; protected by lane.mu
}

// wakeUp wakes the caller that waits for the batch.
func (b *batch) wakeUp() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// checkOpen follows claim: it takes the weight back if the engine is closed.
func (l *lane) checkOpen(weight int64) error {
	if l.e.closed.Load() {
		l.load.Add(-weight)
		return fmt.Errorf("nvme: %s: %w", l.e.c.Name(), ErrClosed)
	}
	return nil
}

// submit appends commands to the lane as a batch. The caller gives it back with recycle.
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
	l.listed.Store(int32(len(l.batches)))
	return b
}

// recycle keeps a batch that is done, to be used again.
func (l *lane) recycle(b *batch) {
	l.mu.Lock()
	l.free = append(l.free, b)
	l.mu.Unlock()
}

// end removes a batch whose last command has ended, and wakes its caller.
func (l *lane) end(b *batch) {
	l.mu.Lock()
	if i := slices.Index(l.batches, b); i >= 0 {
		l.batches = slices.Delete(l.batches, i, i+1)
		l.listed.Store(int32(len(l.batches)))
	}
	// Under mu, so that handOver cannot wake a batch that is already used for another call.
	b.cmds = nil
	b.done.Store(true)
	if b != l.own {
		b.wakeUp()
	}
	l.mu.Unlock()
}
