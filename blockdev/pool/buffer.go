package pool

import (
	"errors"

	"github.com/lanefs/lanefs/blockdev"
)

func (b *Buffer) Bytes() []byte {
	if b.chunk.host == nil {
		return nil
	}
	return b.chunk.host[b.off : b.off+b.n : b.off+b.n]
}

func (b *Buffer) Len() int { return b.n }

func (b *Buffer) Slice(off, n int) blockdev.Slice { return blockdev.Slice{Buf: b, Off: off, N: n} }

func (b *Buffer) Release() {
	if b.chunk.attached {
		_ = b.chunk.mem.Close() // only a lost controller refuses, and that reaches nothing any more
	}
	b.pool.release(b)
}

// Memory is what the buffer is a part of, from Offset on.
func (b *Buffer) Memory() Memory { return b.chunk.mem }

// Offset is where the buffer begins in its Memory, in bytes.
func (b *Buffer) Offset() int { return b.off }

// Attach makes a buffer of memory that is not the pool's and does not count. Releasing the buffer closes the memory.
func (p *Pool) Attach(m Memory) (*Buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(blockdev.ErrClosed, m.Close())
	}
	p.live++
	return &Buffer{pool: p, chunk: &chunk{mem: m, host: m.Bytes(), attached: true}, inUse: true, n: int(m.Len())}, nil
}

// Of says whether b is a buffer of this pool.
func (p *Pool) Of(b blockdev.Buffer) bool {
	mine, ok := b.(*Buffer)
	return ok && mine.pool == p
}

// Alloc gives a buffer of at least n bytes. See blockdev.Device.
func (p *Pool) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	u := blockdev.ForData
	for _, x := range use {
		u |= x
	}
	return p.alloc(n, u)
}

// Room is how much a use can have. See blockdev.Bounded.
func (p *Pool) Room(use blockdev.Use) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mostLocked(use)
}

// Size is how many bytes are pinned now.
func (p *Pool) Size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}
