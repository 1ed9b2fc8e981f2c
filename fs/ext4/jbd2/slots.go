package jbd2

import (
	"sync"

	"github.com/lanefs/lanefs/blockdev"
)

// slotChunk is how much pinned memory is asked for at a time. Small blocks share a chunk.
const slotChunk = 256 << 10

// slots hands out block-sized pieces of pinned memory.
type slots struct {
	dev  blockdev.Device
	size int // of a slot: one block
	per  int // slots in a chunk

	mu    sync.Mutex
	avail []*slotBlock // protected by mu: chunks with a free slot
}

// slotBlock is one pinned chunk.
type slotBlock struct {
	buf  blockdev.Buffer
	free []int // slots not in use
	pos  int   // in slots.avail, -1 when full
}

// slot is one block of pinned memory.
type slot struct {
	chunk *slotBlock
	n     int
}

func newSlots(dev blockdev.Device, size int) *slots {
	return &slots{dev: dev, size: size, per: max(slotChunk/size, 4)}
}

func (s *slots) slice(x slot) blockdev.Slice { return x.chunk.buf.Slice(x.n*s.size, s.size) }

func (s *slots) take() (slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.growLocked(); err != nil {
		return slot{}, err
	}
	c := s.avail[len(s.avail)-1]
	n := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	if len(c.free) == 0 {
		s.avail = s.avail[:len(s.avail)-1]
		c.pos = -1
	}
	return slot{c, n}, nil
}

// growLocked sees to it that there is a free slot. It does not wait for memory.
func (s *slots) growLocked() error {
	if len(s.avail) > 0 {
		return nil
	}
	buf, err := s.dev.Alloc(s.per*s.size, blockdev.ForCache|blockdev.NoWait)
	if err != nil {
		return err
	}
	c := &slotBlock{buf: buf}
	for i := s.per - 1; i >= 0; i-- {
		c.free = append(c.free, i)
	}
	s.avail = append(s.avail, c)
	return nil
}

// can says whether there is a free slot, or memory for one.
func (s *slots) can() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.growLocked() == nil
}

// trim gives back all chunks that are wholly free.
func (s *slots) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.avail) - 1; i >= 0; i-- {
		if c := s.avail[i]; len(c.free) == s.per {
			s.dropLocked(c)
		}
	}
}

// dropLocked gives a chunk back that is wholly free.
func (s *slots) dropLocked(c *slotBlock) {
	last := s.avail[len(s.avail)-1]
	s.avail[c.pos], last.pos = last, c.pos
	s.avail = s.avail[:len(s.avail)-1]
	c.buf.Release()
}

func (s *slots) give(x slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := x.chunk
	c.free = append(c.free, x.n)
	switch {
	case c.pos < 0:
		c.pos = len(s.avail)
		s.avail = append(s.avail, c)
	case len(c.free) == s.per && len(s.avail) > 4:
		// Enough other chunks have room: give this one back.
		s.dropLocked(c)
	}
}

// close releases the chunks that are wholly free and reports how many slots are still in use elsewhere.
func (s *slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.avail {
		if len(c.free) == s.per {
			c.buf.Release()
		}
	}
	s.avail = nil
}
