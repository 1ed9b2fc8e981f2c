package blockdev

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/lanefs/lanefs/nvmeq"
)

// Pinned memory is mapped for the controller once, in chunks, and then only cut up and reused.
//
// A chunk is slabsPerChunk slabs of slabSize bytes. A slab holds buffers of one class, the powers of two from minBuffer
// to slabSize, and becomes a free slab again when its last buffer is released. What is larger than a slab has a chunk
// of its own.
const (
	minBuffer     = 4096
	slabSize      = 2 << 20
	slabsPerChunk = 8
	classes       = 10       // 4 KiB to 2 MiB
	keepSpare     = 64 << 20 // bytes of unused chunks that are kept for the next burst
)

// memory is what a chunk is made of: *nvmeq.Chunk.
type memory interface {
	Bytes() []byte
	IOVA() nvmeq.IOVA
	Len() int64
	Close() error
}

// pool hands out buffers. Its lock is a leaf.
type pool struct {
	source func(size int64) (memory, error)
	limit  int64 // bytes

	mu      sync.Mutex
	size    int64 // bytes of all chunks. Protected by mu, as is all below
	live    int   // buffers handed out
	partial [classes]slabList
	free    []*slab
	large   []*chunk // unused, of their own size
	chunks  map[*chunk]struct{}
	closed  bool
}

type chunk struct {
	mem  memory
	host []byte
	iova nvmeq.IOVA
	used int // slabs that hold a buffer

	attached bool // memory of another owner: never reused
}

type slab struct {
	chunk      *chunk
	off        int // in the chunk
	class      int
	bufs       []buffer
	free       []uint16 // indexes of bufs, the next one last
	prev, next *slab    // in the class's partial list
	listed     bool
}

// buffer is a Buffer of the pool. A released one is in its slab's free list and must not be used.
type buffer struct {
	pool  *pool
	chunk *chunk
	slab  *slab // nil: the chunk is all its own
	index uint16
	inUse bool // protected by pool.mu
	off   int
	n     int
}

func newPool(limit int64, source func(int64) (memory, error)) *pool {
	return &pool{source: source, limit: limit, chunks: map[*chunk]struct{}{}}
}

// classOf is the smallest class that holds n bytes; classes or more when a slab does not.
func classOf(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - bits.Len(uint(minBuffer-1))
}

func (p *pool) alloc(n int) (Buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("a buffer of %d bytes: %w", n, ErrInvalid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	class := classOf(n)
	if class >= classes {
		return p.allocLargeLocked(n)
	}
	s := p.partial[class].head
	if s == nil {
		var err error
		if s, err = p.takeSlabLocked(); err != nil {
			return nil, err
		}
		s.carve(p, class)
		s.chunk.used++
		p.partial[class].push(s)
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	if len(s.free) == 0 {
		p.partial[class].remove(s)
	}
	b := &s.bufs[i]
	b.inUse = true
	p.live++
	return b, nil
}

// takeSlabLocked is a slab that holds nothing.
func (p *pool) takeSlabLocked() (*slab, error) {
	if len(p.free) == 0 {
		c, err := p.growLocked(slabSize * slabsPerChunk)
		if err != nil {
			return nil, err
		}
		for i := slabsPerChunk - 1; i >= 0; i-- {
			p.free = append(p.free, &slab{chunk: c, off: i * slabSize, class: -1})
		}
	}
	s := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return s, nil
}

// carve makes the slab hold buffers of a class; those at its start go first.
func (s *slab) carve(p *pool, class int) {
	if s.class == class {
		return
	}
	s.class = class
	size := minBuffer << class
	s.bufs = make([]buffer, slabSize/size)
	s.free = make([]uint16, len(s.bufs))
	for i := range s.bufs {
		s.bufs[i] = buffer{pool: p, chunk: s.chunk, slab: s, index: uint16(i), off: s.off + i*size, n: size}
		s.free[len(s.bufs)-1-i] = uint16(i)
	}
}

func (p *pool) allocLargeLocked(n int) (Buffer, error) {
	size := (int64(n) + slabSize - 1) / slabSize * slabSize
	best := -1
	for i, c := range p.large {
		if l := c.mem.Len(); l >= size && l <= 2*size && (best < 0 || l < p.large[best].mem.Len()) {
			best = i
		}
	}
	var c *chunk
	if best >= 0 {
		c = p.large[best]
		p.large = append(p.large[:best], p.large[best+1:]...)
	} else {
		var err error
		if c, err = p.growLocked(size); err != nil {
			return nil, err
		}
	}
	c.used = 1
	p.live++
	return &buffer{pool: p, chunk: c, inUse: true, n: int(c.mem.Len())}, nil
}

// growLocked maps one more chunk. At the limit it first gives up what is unused.
func (p *pool) growLocked(size int64) (*chunk, error) {
	if p.size+size > p.limit {
		p.reclaimLocked()
		if err := p.trimLocked(0); err != nil {
			return nil, err
		}
	}
	if p.size+size > p.limit {
		return nil, fmt.Errorf("out of pinned memory: %d of %d bytes are in use, %d more are needed", p.size, p.limit, size)
	}
	m, err := p.source(size)
	if err != nil {
		return nil, fmt.Errorf("pinned memory: %w", err)
	}
	c := &chunk{mem: m, host: m.Bytes(), iova: m.IOVA()}
	p.size += m.Len()
	p.chunks[c] = struct{}{}
	return c, nil
}

// reclaimLocked makes free slabs of those that classes keep for their next buffer.
func (p *pool) reclaimLocked() {
	for class := range p.partial {
		list := &p.partial[class]
		for s := list.head; s != nil; {
			next := s.next
			if len(s.free) == len(s.bufs) {
				list.remove(s)
				p.free = append(p.free, s)
				s.chunk.used--
			}
			s = next
		}
	}
}

// trimLocked closes unused chunks until at most keep bytes of them are left.
func (p *pool) trimLocked(keep int64) error {
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
			errs = append(errs, c.mem.Close())
		}
	}
	if len(drop) > 0 {
		p.free = without(p.free, func(s *slab) bool { return drop[s.chunk] })
		p.large = without(p.large, func(c *chunk) bool { return drop[c] })
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

// release takes a buffer back.
func (p *pool) release(b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !b.inUse {
		panic("blockdev: buffer released twice")
	}
	b.inUse = false
	p.live--
	if p.closed {
		if p.live == 0 {
			p.closeChunksLocked()
		}
		return
	}
	s := b.slab
	if b.chunk.attached {
		return
	}
	if s == nil {
		b.chunk.used = 0
		p.large = append(p.large, b.chunk)
		p.trimLocked(keepSpare)
		return
	}
	list := &p.partial[s.class]
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
	p.free = append(p.free, s)
	if s.chunk.used--; s.chunk.used == 0 {
		p.trimLocked(keepSpare)
	}
}

// close gives all memory back. A buffer that is still out is an error, and the memory stays until it is released: whoever
// holds it may be reading it.
func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.live > 0 {
		return fmt.Errorf("%d buffers were not released", p.live)
	}
	return p.closeChunksLocked()
}

func (p *pool) closeChunksLocked() error {
	var errs []error
	for c := range p.chunks {
		errs = append(errs, c.mem.Close())
	}
	p.chunks, p.free, p.large = nil, nil, nil
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
