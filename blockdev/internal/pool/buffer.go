package pool

import (
	"errors"

	"github.com/lanefs/lanefs/blockdev"
)

// Buffer is a blockdev.Buffer of a pool. After Release it is in its slab's free list and must not be used.
type Buffer struct {
	pool  *Pool
	chunk *chunk
	slab  *slab  // nil: the buffer is the whole chunk
	index uint16 // in slab.bufs
	inUse bool   // protected by pool.mu
	off   int    // in the chunk
	n     int    // length
}

// Bytes is the CPU's view; nil for memory that the CPU cannot reach.
func (b *Buffer) Bytes() []byte {
	if b.chunk.host == nil {
		return nil
	}
	return b.chunk.host[b.off : b.off+b.n : b.off+b.n]
}

// Len is the size in bytes.
func (b *Buffer) Len() int { return b.n }

// Slice is the part of n bytes from off.
func (b *Buffer) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: b, Off: off, N: n} }

// Release gives the buffer back. A second Release panics.
func (b *Buffer) Release() {
	if b.chunk.attached {
		_ = b.chunk.mem.Close() // fails only when the controller is lost, and then nothing reaches the memory any more
	}
	b.pool.release(b)
}

// Memory is the memory that the buffer is a part of.
func (b *Buffer) Memory() Memory { return b.chunk.mem }

// Offset is where the buffer begins in Memory, in bytes.
func (b *Buffer) Offset() int { return b.off }

// Address is where a device has the buffer's first byte, by the device's place in Memory.Addresses.
func (b *Buffer) Address(place int) uint64 { return b.chunk.at[place] + uint64(b.off) }

// Owns says whether b is a buffer of this pool.
func (p *Pool) Owns(b blockdev.Buffer) bool {
	mine, ok := b.(*Buffer)
	return ok && mine.pool == p
}

// Attach makes one buffer of memory that the caller has pinned. It does not count towards the limit. Release closes the memory.
func (p *Pool) Attach(m Memory) (*Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(blockdev.ErrClosed, m.Close())
	}
	p.live++
	return &Buffer{pool: p, chunk: &chunk{mem: m, host: m.Bytes(), at: m.Addresses(), attached: true}, inUse: true, n: int(m.Len())}, nil
}

// takeLocked hands out a buffer of at least n bytes. The error is a *shortage if waiting may help.
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
	return p.countLocked(&s.bufs[i]), nil
}

// countLocked notes that b is handed out.
func (p *Pool) countLocked(b *Buffer) *Buffer {
	a := &p.arenas[b.chunk.use]
	b.inUse = true
	p.live++
	a.live++
	a.held += int64(b.n)
	return b
}

// takeLargeLocked hands out a chunk as one buffer: an unused one of at most twice the size, else a new one.
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
	return p.countLocked(&Buffer{pool: p, chunk: c, n: int(c.mem.Len())}), nil
}

// release takes a buffer back and serves the queues.
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
		p.arenas[b.chunk.use].backs++
		p.serveLocked()
	}
}

// putLocked makes b's memory free.
func (p *Pool) putLocked(b *Buffer) {
	a, s := &p.arenas[b.chunk.use], b.slab
	if s == nil {
		b.chunk.used = 0
		a.large = append(a.large, b.chunk)
		p.trimLocked(maxSpare)
		return
	}
	list := &a.partial[s.class]
	s.free = append(s.free, b.index)
	if len(s.free) < len(s.bufs) {
		list.push(s)
		return
	}
	// The last slab of a class stays: else a single buffer that is allocated and released in turn would carve a slab each time.
	if !s.listed && list.head == nil || s.listed && list.head == s && s.next == nil {
		list.push(s)
		return
	}
	list.remove(s)
	a.free = append(a.free, s)
	if s.chunk.used--; s.chunk.used == 0 {
		p.trimLocked(maxSpare)
	}
}
