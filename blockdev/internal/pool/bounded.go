package pool

import (
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
)

// Reserve keeps n bytes for a use, rounded up to SlabSize. See blockdev.Bounded.
func (p *Pool) Reserve(use blockdev.Use, n int64) error {
	if use >= blockdev.NumUses || n < 0 {
		return fmt.Errorf("%d bytes reserved for %v: %w", n, use, blockdev.ErrInvalid)
	}
	n = min((n+SlabSize-1)/SlabSize*SlabSize, max(n, p.limit))
	p.mu.Lock()
	defer p.mu.Unlock()
	others := p.limit - p.mostLocked(use)
	if n > p.limit-others {
		return fmt.Errorf("%w: %d bytes are to be kept for %v, of %d bytes %d are left", blockdev.ErrNoMemory, n, use, p.limit, p.limit-others)
	}
	p.arenas[use].reserved = n
	p.serveLocked()
	return nil
}

// Room is how many bytes a use can have. See blockdev.Bounded.
func (p *Pool) Room(use blockdev.Use) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mostLocked(use)
}

// OnShort has f called when memory is short. See blockdev.Bounded.
func (p *Pool) OnShort(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.short = f
}
