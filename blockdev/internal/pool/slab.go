package pool

import (
	"math/bits"

	"github.com/lanefs/lanefs/blockdev"
)

// slab is SlabSize bytes of a chunk.
type slab struct {
	chunk      *chunk
	off        int // in the chunk
	class      int // -1: never carved
	bufs       []Buffer
	free       []uint16 // indexes of bufs; the last is handed out next
	prev, next *slab    // in the slabList of its class
	listed     bool
}

// classOf is the smallest class whose buffers hold n bytes; at least classes if n is more than a slab.
func classOf(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - bits.Len(uint(minBuffer-1))
}

// takeSlabLocked takes a free slab, of a new chunk if there is none.
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

// carve cuts the slab into buffers of a class. The one at the lowest offset is handed out first.
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

// slabList is a list of slabs of one class that have a free buffer.
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
