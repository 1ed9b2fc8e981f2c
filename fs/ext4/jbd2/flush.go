package jbd2

import (
	"fmt"
	"sync"
)

// A flush that has failed may have lost what it was to make durable, and the device may know nothing of it any more: the next flush
// succeeds and proves nothing. So the first failure is the answer to every flush of the cache from then on, whoever asks, and a journal
// that hears of it is aborted.

// FlushDevice is the one way to the device's Flush.
func (c *Cache) FlushDevice() error {
	if p := c.unflushed.Load(); p != nil {
		return *p
	}
	if err := c.dev.Flush(); err != nil {
		c.unflushed.CompareAndSwap(nil, &err)
	}
	if p := c.unflushed.Load(); p != nil { // also that of a flush that ran beside this one
		return *p
	}
	return nil
}

// flush is Cache.Flush for those to whom it is said that something is durable.
func (j *Journal) flush() error {
	if err := j.cache.Flush(); err != nil {
		j.Abort(fmt.Errorf("flush: %w", err))
		return j.Err()
	}
	return nil
}

// flusher lets those who want the device flushed at the same time share a flush. One that is under way may have begun
// before the last of them had written, so they share the next.
type flusher struct {
	mu   sync.Mutex
	cur  *flushRound // protected by mu: under way, nil if none is
	next *flushRound // protected by mu: has not begun, nil if nobody wants it
}

type flushRound struct {
	done chan struct{}
	err  error // valid once done is closed
}

// Flush makes all that was written before the call durable.
func (c *Cache) Flush() error {
	f := &c.flusher
	f.mu.Lock()
	if r := f.next; r != nil {
		f.mu.Unlock()
		c.counters.flushesShared.Add(1)
		<-r.done // ends with the device's own deadlines
		return r.err
	}
	r, before := &flushRound{done: make(chan struct{})}, f.cur
	f.next = r
	f.mu.Unlock()
	if before != nil {
		<-before.done
	}
	f.mu.Lock()
	f.cur, f.next = r, nil // who comes now shares the one after this
	f.mu.Unlock()
	r.err = c.FlushDevice()
	f.mu.Lock()
	if f.cur == r {
		f.cur = nil
	}
	f.mu.Unlock()
	close(r.done)
	return r.err
}
