package pool

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// Pinned memory is mapped for the controller once, in chunks, and then only cut up and reused.
//
// A chunk belongs to a use, and is a few slabs of SlabSize bytes. A slab holds buffers of one class, the powers of two from
// minBuffer to SlabSize, and becomes a free slab again when its last buffer is released. What is larger than a slab has a
// chunk of its own.
const (
	minBuffer = 4096
	classes   = 10       // 4 KiB to 2 MiB
	keepSpare = 64 << 20 // bytes of unused chunks that are kept for the next burst
)

// SlabSize is the unit, in bytes, in which memory is pinned and reserved.
const SlabSize = 2 << 20

// DataShare is what a device should reserve for file data in a pool of limit bytes: a quarter of a small one, 64 MiB of a large one.
func DataShare(limit int64) int64 {
	const least, most = 2 * SlabSize, 64 << 20
	return min(max(least, min(limit/4, most)/SlabSize*SlabSize), limit)
}

// slabsPerChunk of each use: what stays for long is given back in smaller pieces.
var slabsPerChunk = [blockdev.NumUses]int64{blockdev.ForData: 8, blockdev.ForBlock: 1, blockdev.ForCache: 2, blockdev.ForJournal: 1}

// Memory is pinned memory that the pool cuts up. Bytes is nil where the CPU does not reach it.
type Memory interface {
	Bytes() []byte
	Len() int64
	Close() error
}

// Pool hands out buffers of pinned memory, within a limit. All methods may be called from any goroutine; its lock is a leaf.
type Pool struct {
	source         func(size int64) (Memory, error)
	limit          int64         // bytes
	patience, tick time.Duration // see await

	mu      sync.Mutex
	size    int64 // bytes of all chunks. Protected by mu, as is all below
	live    int   // buffers handed out, those of attached memory too
	arenas  [blockdev.NumUses]arena
	chunks  map[*chunk]struct{}
	waiting int     // in the queues of all arenas
	refused refusal // of the source
	short   func()  // see Bounded.OnShort
	closed  bool
}

// arena is the memory of a use.
type arena struct {
	reserved int64 // bytes that the others leave to it
	size     int64 // bytes of its chunks
	held     int64 // bytes of the buffers handed out
	live     int   // how many those are
	partial  [classes]slabList
	free     []*slab
	large    []*chunk // unused, of their own size
	queue    []*waiter
	back     time.Time // when a buffer was last given back while somebody waited
}

// New makes a pool of at most limit bytes. source pins memory; size is a multiple of SlabSize.
func New(limit int64, source func(size int64) (Memory, error)) *Pool {
	return &Pool{source: source, limit: limit, patience: defaultPatience, tick: defaultTick, chunks: map[*chunk]struct{}{}}
}

// Size is how many bytes are pinned now.
func (p *Pool) Size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// Close gives all memory back. A buffer that is still out is an error, and the memory stays until it is released: whoever
// holds it may be reading it.
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
