package pool

import (
	"math/bits"

	"github.com/lanefs/lanefs/blockdev"
)

type slab struct {
	chunk      *chunk
	off        int // in the chunk
	class      int
	bufs       []Buffer
	free       []uint16 // indexes of bufs, the next one last
	prev, next *slab    // in the class's partial list
	listed     bool
}

// classOf is the smallest class that holds n bytes; classes or more when a slab does not.
func classOf(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - bits.Len(uint(minBuffer-1))
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
