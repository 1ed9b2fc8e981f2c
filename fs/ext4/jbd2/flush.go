package jbd2

import "sync"

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
	r.err = c.dev.Flush()
	f.mu.Lock()
	if f.cur == r {
		f.cur = nil
	}
	f.mu.Unlock()
	close(r.done)
	return r.err
}
