package jbd2

import (
	"errors"
	"sync"
)

// errFlush is part of every error that says that something may not be durable which was to be.
var errFlush = errors.New("flush failed")

type flushError struct{ cause error }

func (e *flushError) Error() string   { return e.cause.Error() }
func (e *flushError) Unwrap() []error { return []error{errFlush, e.cause} }

// FlushDevice flushes the device, unless a flush has failed before. After that none is of any worth: see Journal.flush.
func (c *Cache) FlushDevice() error {
	if e := c.unflushed.Load(); e != nil {
		return e
	}
	if err := c.dev.Flush(); err != nil {
		c.unflushed.CompareAndSwap(nil, &flushError{err})
	}
	if e := c.unflushed.Load(); e != nil { // also of one that ran at the same time
		return e
	}
	return nil
}

// flusher lets callers that want the device flushed at the same time share a flush. One that is under way may have begun before
// the last of them had written, so they share the next.
type flusher struct {
	mu   sync.Mutex
	cur  *flushRound // protected by mu: under way, nil if none is
	next *flushRound // protected by mu: has not begun, nil if none is wanted
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
	f.cur, f.next = r, nil // later callers share the one after this
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
