package pool

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

type chunk struct {
	use  blockdev.Use
	mem  Memory
	host []byte
	used int // slabs that hold a buffer

	attached bool // memory of another owner: never reused
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

// refusal is what the system said when it was last asked for memory in vain.
type refusal struct {
	err  error
	size int64 // the pool's, after it
	at   time.Time
}

// pinLocked asks the source for size bytes; if it refuses, for least, and after giving up what is unused once more. Soon after a
// refusal it does not ask again, unless memory was given back since.
func (p *Pool) pinLocked(size, least int64) (Memory, error) {
	if p.refused.err != nil && p.size >= p.refused.size && time.Since(p.refused.at) < p.tick {
		return nil, &shortage{p.refused.err}
	}
	m, err := p.source(size)
	if err != nil && size > least {
		m, err = p.source(least)
	}
	if had := p.size; err != nil {
		p.reclaimLocked()
		if terr := p.trimLocked(0); terr == nil && p.size < had {
			m, err = p.source(least)
		}
	}
	if err != nil {
		p.refused = refusal{err, p.size, time.Now()}
		return nil, &shortage{err}
	}
	p.refused = refusal{}
	return m, nil
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
