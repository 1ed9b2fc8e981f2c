package pool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// An Alloc that finds no memory waits in the queue of its use. The queue is first come, first served: a later Alloc gets nothing before
// an earlier one, even if it needs less, so a large buffer is not starved by small ones. A wait ends with a buffer, or with ErrNoMemory
// when no buffer of its use was released for defaultTimeout. As long as buffers are released it may take longer. The time is counted in ticks: a process that was stopped
// has used one, since who was to release buffers was stopped with it.
const (
	defaultTimeout = 2 * time.Minute
	defaultTick    = time.Second // between two requests to a system that has refused memory
)

// waiter is an Alloc that waits.
type waiter struct {
	n     int
	since time.Time
	backs uint64 // the arena's at the last tick, and how long it has been that
	spent time.Duration
	ready chan struct{} // closed when buf or err is set
	buf   *Buffer
	err   error
}

// shortage is the error of an allocation that may succeed later. why is the source's error; nil if the pool is at its limit.
type shortage struct{ why error }

func (s *shortage) Error() string {
	if s.why != nil {
		return fmt.Sprintf("; the system refuses more: %v", s.why)
	}
	return ""
}

// Alloc gives a buffer of at least n bytes. See blockdev.Device.
func (p *Pool) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	u := blockdev.ForData
	for _, x := range use {
		u |= x
	}
	return p.alloc(n, u)
}

// alloc is Alloc with one use, to which NoWait may be added.
func (p *Pool) alloc(n int, use blockdev.Use) (blockdev.Buffer, error) {
	wait := use&blockdev.NoWait == 0
	if use &^= blockdev.NoWait; n < 0 || use >= blockdev.NumUses {
		return nil, fmt.Errorf("a buffer of %d bytes for %v: %w", n, use, blockdev.ErrInvalid)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, blockdev.ErrClosed
	}
	if most := p.mostLocked(use); int64(n) > most {
		p.mu.Unlock()
		return nil, fmt.Errorf("%w: %d bytes for %v, which can have %d of %d", blockdev.ErrNoMemory, n, use, most, p.limit)
	}
	a := &p.arenas[use]
	err := error(&shortage{})
	if len(a.queue) == 0 {
		var b *Buffer
		if b, err = p.takeLocked(use, n); err == nil {
			p.mu.Unlock()
			return b, nil
		}
	}
	var short *shortage
	switch {
	case !errors.As(err, &short):
		p.mu.Unlock()
		return nil, err
	case p.neverLocked(use, short):
		p.mu.Unlock()
		return nil, fmt.Errorf("pinned memory: %w", short.why)
	case !wait:
		err = fmt.Errorf("%w: %d bytes for %v; %s%s", blockdev.ErrNoMemory, n, use, p.holdersLocked(), short)
		p.mu.Unlock()
		return nil, err
	}
	w := &waiter{n: n, since: time.Now(), backs: a.backs, ready: make(chan struct{})}
	a.queue = append(a.queue, w)
	p.waiting++
	f := p.short
	if cache := &p.arenas[blockdev.ForCache]; cache.size <= cache.reserved && p.refused.err == nil {
		f = nil
	}
	p.mu.Unlock()
	if f != nil {
		f()
	}
	return p.await(use, w)
}

// neverLocked says that waiting cannot help: the system refuses memory, and no buffer is in use whose release would serve instead.
func (p *Pool) neverLocked(use blockdev.Use, s *shortage) bool {
	return s.why != nil && p.arenas[use].live == 0 && (use == blockdev.ForCache || p.arenas[blockdev.ForCache].live == 0 || p.short == nil)
}

// await waits until w is served, and asks the system again at each tick.
func (p *Pool) await(use blockdev.Use, w *waiter) (blockdev.Buffer, error) {
	tick := time.NewTicker(p.tick)
	defer tick.Stop()
	for {
		select {
		case <-w.ready:
			if w.err != nil {
				return nil, w.err
			}
			return w.buf, nil
		case <-tick.C:
			p.mu.Lock()
			p.serveLocked()
			p.giveUpLocked(use, w)
			p.mu.Unlock()
		}
	}
}

// giveUpLocked is a tick of w. It ends it with ErrNoMemory if no buffer was released for p.timeout.
func (p *Pool) giveUpLocked(use blockdev.Use, w *waiter) {
	a := &p.arenas[use]
	if w.spent += p.tick; w.backs != a.backs {
		w.backs, w.spent = a.backs, 0
	}
	i := slices.Index(a.queue, w)
	if i < 0 || w.spent < p.timeout {
		return
	}
	p.endLocked(a, i, nil, fmt.Errorf("%w: waited %v for %d bytes for %v, and nothing came back for %v; %s%s", blockdev.ErrNoMemory,
		time.Since(w.since).Round(p.tick), w.n, use, p.timeout, p.holdersLocked(), &shortage{p.refused.err}))
	p.serveLocked() // the next in the queue may need less
}

// endLocked ends the i-th wait in a's queue.
func (p *Pool) endLocked(a *arena, i int, b *Buffer, err error) {
	w := a.queue[i]
	a.queue = slices.Delete(a.queue, i, i+1)
	p.waiting--
	w.buf, w.err = b, err
	close(w.ready)
}

// serveLocked serves each queue from its front, as far as there is memory.
func (p *Pool) serveLocked() {
	for u := range p.arenas {
		a := &p.arenas[u]
		for len(a.queue) > 0 {
			if p.closed {
				p.endLocked(a, 0, nil, blockdev.ErrClosed)
				continue
			}
			b, err := p.takeLocked(blockdev.Use(u), a.queue[0].n)
			var short *shortage
			if errors.As(err, &short) {
				if !p.neverLocked(blockdev.Use(u), short) {
					break
				}
				err = fmt.Errorf("pinned memory: %w", short.why)
			}
			p.endLocked(a, 0, b, err)
		}
	}
}

// holdersLocked describes what each use holds, for an error.
func (p *Pool) holdersLocked() string {
	var parts []string
	for u := range p.arenas {
		a := &p.arenas[u]
		parts = append(parts, fmt.Sprintf("%v %d in %d buffers", blockdev.Use(u), a.held, a.live))
	}
	return fmt.Sprintf("%d of at most %d bytes are pinned: %s", p.size, p.limit, strings.Join(parts, ", "))
}
