// Package pool has a Pool of pinned memory, cut into Buffers and reused.
//
// Memory is pinned once, in chunks, and stays mapped for the device while the pool keeps it. A chunk belongs to one use (blockdev.Use)
// and consists of slabs of SlabSize bytes. A slab holds buffers of one size class, the powers of two from 4 KiB to SlabSize, and is
// free for another class when its last buffer is released. A buffer that is larger than a slab has a chunk of its own.
//
// The pool has a limit. Each use may have a part of it reserved, which the others leave free. An Alloc that finds no memory waits in
// the queue of its use, and buffers that come back serve the queue first come, first served; see wait.go.
package pool

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

const (
	minBuffer = 4096
	classes   = 10       // 4 KiB to 2 MiB
	maxSpare  = 64 << 20 // bytes of unused chunks that are kept for the next burst
)

// SlabSize is the unit, in bytes, in which memory is pinned and reserved.
const SlabSize = 2 << 20

// DataShare is what a device should reserve for file data in a pool of limit bytes: a quarter of a small one, 64 MiB of a large one.
func DataShare(limit int64) int64 {
	const least, most = 2 * SlabSize, 64 << 20
	return min(max(least, min(limit/4, most)/SlabSize*SlabSize), limit)
}

// slabsPerChunk is the size of a use's chunks. Long-lived buffers get small chunks: one live buffer keeps its whole chunk pinned.
var slabsPerChunk = [blockdev.NumUses]int64{blockdev.ForData: 8, blockdev.ForBlock: 1, blockdev.ForCache: 2, blockdev.ForJournal: 1,
	blockdev.ForPayload: 1}

// Memory is pinned memory that the pool cuts up.
type Memory interface {
	Bytes() []byte       // nil where the CPU cannot reach it
	Len() int64          // in bytes
	Addresses() []uint64 // where devices have it, each its own, in the order of whoever has the pool. They do not change
	Close() error
}

// Pool hands out buffers of pinned memory, within a limit. All methods may be called from any goroutine. No other lock is taken while
// a pool's is held.
type Pool struct {
	source        func(size int64) (Memory, error)
	limit         int64         // bytes
	timeout, tick time.Duration // see await

	mu      sync.Mutex
	size    int64 // bytes of all chunks. Protected by mu, as is all below
	live    int   // buffers handed out, those of attached memory included
	arenas  [blockdev.NumUses]arena
	chunks  map[*chunk]struct{}
	waiting int     // entries in the queues of all arenas
	refused refusal // the source's last error
	short   func()  // see blockdev.Bounded.OnShort
	closed  bool
}

// arena is the memory of one use.
type arena struct {
	reserved int64             // bytes that the other uses leave to this one
	size     int64             // bytes of its chunks
	held     int64             // bytes of the buffers handed out
	live     int               // number of those buffers
	partial  [classes]slabList // slabs with a free buffer, by class
	free     []*slab           // slabs without any buffer in use
	large    []*chunk          // unused chunks of one buffer each
	queue    []*waiter         // first come first
	backs    uint64            // buffers released while anyone waited
}

// New makes a pool of at most limit bytes. source pins size bytes, a multiple of SlabSize.
func New(limit int64, source func(size int64) (Memory, error)) *Pool {
	return &Pool{source: source, limit: limit, timeout: defaultTimeout, tick: defaultTick, chunks: map[*chunk]struct{}{}}
}

// Size is how many bytes are pinned now.
func (p *Pool) Size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// Close ends all waits with ErrClosed and unpins the memory. A buffer that was not released is an error; then all memory stays until
// the last buffer is released, since its owner may still use it.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.serveLocked() // with an error
	if p.live > 0 {
		return fmt.Errorf("%d buffers were not released", p.live)
	}
	return p.closeChunksLocked()
}

func (p *Pool) closeChunksLocked() error {
	var errs []error
	for c := range p.chunks {
		errs = append(errs, c.mem.Close())
	}
	p.chunks, p.arenas = nil, [blockdev.NumUses]arena{}
	return errors.Join(errs...)
}
