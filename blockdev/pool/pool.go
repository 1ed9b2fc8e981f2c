package pool

import (
	"errors"
	"fmt"
	"math/bits"
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

type chunk struct {
	use  blockdev.Use
	mem  Memory
	host []byte
	used int // slabs that hold a buffer

	attached bool // memory of another owner: never reused
}

type slab struct {
	chunk      *chunk
	off        int // in the chunk
	class      int
	bufs       []Buffer
	free       []uint16 // indexes of bufs, the next one last
	prev, next *slab    // in the class's partial list
	listed     bool
}

// Buffer is a blockdev.Buffer of a pool. A released one is in its slab's free list and must not be used.
type Buffer struct {
	pool  *Pool
	chunk *chunk
	slab  *slab // nil: the chunk is all its own
	index uint16
	inUse bool // protected by pool.mu
	off   int
	n     int
}

// New makes a pool of at most limit bytes. source pins memory; size is a multiple of SlabSize.
func New(limit int64, source func(size int64) (Memory, error)) *Pool {
	return &Pool{source: source, limit: limit, patience: defaultPatience, tick: defaultTick, chunks: map[*chunk]struct{}{}}
}

// classOf is the smallest class that holds n bytes; classes or more when a slab does not.
func classOf(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - bits.Len(uint(minBuffer-1))
}

// takeLocked hands out a buffer of at least n bytes. The error is a *shortage where one may come back.
func (p *Pool) takeLocked(use blockdev.Use, n int) (*Buffer, error) {
	a := &p.arenas[use]
	class := classOf(n)
	if class >= classes {
		return p.takeLargeLocked(use, n)
	}
	s := a.partial[class].head
	if s == nil {
		var err error
		if s, err = p.takeSlabLocked(use); err != nil {
			return nil, err
		}
		s.carve(p, class)
		s.chunk.used++
		a.partial[class].push(s)
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if len(s.free) == 0 {
		a.partial[class].remove(s)
	}
	return p.outLocked(&s.bufs[i]), nil
}

// outLocked counts a buffer that is handed out.
func (p *Pool) outLocked(b *Buffer) *Buffer {
	a := &p.arenas[b.chunk.use]
	b.inUse = true
	p.live++
	a.live++
	a.held += int64(b.n)
	return b
}

// takeSlabLocked is a slab that holds nothing.
func (p *Pool) takeSlabLocked(use blockdev.Use) (*slab, error) {
	a := &p.arenas[use]
	if len(a.free) == 0 {
		c, err := p.growLocked(use, SlabSize, SlabSize*slabsPerChunk[use])
		if err != nil {
			return nil, err
		}
		for i := int(c.mem.Len()/SlabSize) - 1; i >= 0; i-- {
			a.free = append(a.free, &slab{chunk: c, off: i * SlabSize, class: -1})
		}
	}
	s := a.free[len(a.free)-1]
	a.free = a.free[:len(a.free)-1]
	return s, nil
}

// carve makes the slab hold buffers of a class; those at its start go first.
func (s *slab) carve(p *Pool, class int) {
	if s.class == class {
		return
	}
	s.class = class
	size := minBuffer << class
	s.bufs = make([]Buffer, SlabSize/size)
	s.free = make([]uint16, len(s.bufs))
	for i := range s.bufs {
		s.bufs[i] = Buffer{pool: p, chunk: s.chunk, slab: s, index: uint16(i), off: s.off + i*size, n: size}
		s.free[len(s.bufs)-1-i] = uint16(i)
	}
}

func (p *Pool) takeLargeLocked(use blockdev.Use, n int) (*Buffer, error) {
	a := &p.arenas[use]
	size := (int64(n) + SlabSize - 1) / SlabSize * SlabSize
	best := -1
	for i, c := range a.large {
		if l := c.mem.Len(); l >= size && l <= 2*size && (best < 0 || l < a.large[best].mem.Len()) {
			best = i
		}
	}
	var c *chunk
	if best >= 0 {
		c = a.large[best]
		a.large = append(a.large[:best], a.large[best+1:]...)
	} else {
		var err error
		if c, err = p.growLocked(use, size, size); err != nil {
			return nil, err
		}
	}
	c.used = 1
	return p.outLocked(&Buffer{pool: p, chunk: c, n: int(c.mem.Len())}), nil
}

// growLocked maps one more chunk, of want bytes or as many as there is room for, at least least. At the limit it first gives up
// what is unused.
func (p *Pool) growLocked(use blockdev.Use, least, want int64) (*chunk, error) {
	if p.roomLocked(use) < want {
		p.reclaimLocked()
		if err := p.trimLocked(0); err != nil {
			return nil, err
		}
	}
	size := min(want, p.roomLocked(use)/SlabSize*SlabSize)
	if size < least {
		return nil, &shortage{}
	}
	m, err := p.pinLocked(size, least)
	if err != nil {
		return nil, err
	}
	c := &chunk{use: use, mem: m, host: m.Bytes()}
	p.size += m.Len()
	p.arenas[use].size += m.Len()
	p.chunks[c] = struct{}{}
	return c, nil
}

// roomLocked is how many bytes more a use may have: what the limit leaves and nobody else has reserved.
func (p *Pool) roomLocked(use blockdev.Use) int64 {
	room := p.limit - p.size
	for u := range p.arenas {
		if a := &p.arenas[u]; blockdev.Use(u) != use {
			room -= max(a.reserved-a.size, 0)
		}
	}
	return room
}

// mostLocked is how many bytes a use can have if nobody has more than is reserved for him.
func (p *Pool) mostLocked(use blockdev.Use) int64 {
	most := p.limit
	for u := range p.arenas {
		if blockdev.Use(u) != use {
			most -= p.arenas[u].reserved
		}
	}
	return most
}

// reclaimLocked makes free slabs of those that classes keep for their next buffer.
func (p *Pool) reclaimLocked() {
	for u := range p.arenas {
		a := &p.arenas[u]
		for class := range a.partial {
			list := &a.partial[class]
			for s := list.head; s != nil; {
				next := s.next
				if len(s.free) == len(s.bufs) {
					list.remove(s)
					a.free = append(a.free, s)
					s.chunk.used--
				}
				s = next
			}
		}
	}
}

// trimLocked closes unused chunks until at most keep bytes of them are left.
func (p *Pool) trimLocked(keep int64) error {
	var errs []error
	drop := map[*chunk]bool{}
	for c := range p.chunks {
		if c.used > 0 {
			continue
		}
		if keep -= c.mem.Len(); keep < 0 {
			drop[c] = true
			delete(p.chunks, c)
			p.size -= c.mem.Len()
			p.arenas[c.use].size -= c.mem.Len()
			errs = append(errs, c.mem.Close())
		}
	}
	if len(drop) > 0 {
		for u := range p.arenas {
			a := &p.arenas[u]
			a.free = without(a.free, func(s *slab) bool { return drop[s.chunk] })
			a.large = without(a.large, func(c *chunk) bool { return drop[c] })
		}
	}
	return errors.Join(errs...)
}

func without[T any](in []T, drop func(T) bool) []T {
	out := in[:0]
	for _, v := range in {
		if !drop(v) {
			out = append(out, v)
		}
	}
	clear(in[len(out):])
	return out
}

// release takes a buffer back, and gives it to who waits.
func (p *Pool) release(b *Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !b.inUse {
		panic("blockdev: buffer released twice")
	}
	b.inUse = false
	p.live--
	if !b.chunk.attached {
		a := &p.arenas[b.chunk.use]
		a.live--
		a.held -= int64(b.n)
	}
	if p.closed {
		if p.live == 0 {
			p.closeChunksLocked()
		}
		return
	}
	if b.chunk.attached {
		return
	}
	p.putLocked(b)
	if p.waiting > 0 {
		p.arenas[b.chunk.use].back = time.Now()
		p.serveLocked()
	}
}

// putLocked makes what a buffer held free.
func (p *Pool) putLocked(b *Buffer) {
	a, s := &p.arenas[b.chunk.use], b.slab
	if s == nil {
		b.chunk.used = 0
		a.large = append(a.large, b.chunk)
		p.trimLocked(keepSpare)
		return
	}
	list := &a.partial[s.class]
	s.free = append(s.free, b.index)
	if len(s.free) < len(s.bufs) {
		list.push(s)
		return
	}
	// The last slab of a class stays, so that one buffer coming and going carves nothing.
	if !s.listed && list.head == nil || s.listed && list.head == s && s.next == nil {
		list.push(s)
		return
	}
	list.remove(s)
	a.free = append(a.free, s)
	if s.chunk.used--; s.chunk.used == 0 {
		p.trimLocked(keepSpare)
	}
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

// slabList is a class's slabs that have a buffer free.
type slabList struct{ head *slab }

func (l *slabList) push(s *slab) {
	if s.listed {
		return
	}
	s.listed, s.prev, s.next = true, nil, l.head
	if l.head != nil {
		l.head.prev = s
	}
	l.head = s
}

func (l *slabList) remove(s *slab) {
	if !s.listed {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.listed, s.prev, s.next = false, nil, nil
}
