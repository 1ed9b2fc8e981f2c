package pool

import (
	"errors"
	"slices"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// chunk is memory of one use that was pinned at once.
type chunk struct {
	use  blockdev.Use
	mem  Memory
	host []byte   // mem.Bytes()
	at   []uint64 // mem.Addresses()
	used int      // slabs that hold a buffer; 1 for a chunk of one buffer

	attached bool // the caller's memory (Attach): never reused
}

// growLocked pins one more chunk of want bytes, or of what the limit leaves, but at least least. At the limit it first closes unused
// chunks. The error is a *shortage if waiting may help.
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
	c := &chunk{use: use, mem: m, host: m.Bytes(), at: m.Addresses()}
	p.size += m.Len()
	p.arenas[use].size += m.Len()
	p.chunks[c] = struct{}{}
	return c, nil
}

// refusal is the last error of the source; err is nil after a success.
type refusal struct {
	err  error
	size int64 // of the pool after it, in bytes
	at   time.Time
}

// pinLocked asks the source for size bytes, then for least, then closes unused chunks and asks for least once more. Within a tick of an
// error it does not ask again unless a chunk was closed since.
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

// roomLocked is how many bytes more a use may pin: what the limit leaves, less what other uses have reserved and not pinned yet.
func (p *Pool) roomLocked(use blockdev.Use) int64 {
	room := p.limit - p.size
	for u := range p.arenas {
		if a := &p.arenas[u]; blockdev.Use(u) != use {
			room -= max(a.reserved-a.size, 0)
		}
	}
	return room
}

// mostLocked is how many bytes a use can have when no other has more than is reserved for it.
func (p *Pool) mostLocked(use blockdev.Use) int64 {
	most := p.limit
	for u := range p.arenas {
		if blockdev.Use(u) != use {
			most -= p.arenas[u].reserved
		}
	}
	return most
}

// reclaimLocked frees the slabs that putLocked keeps for their class although no buffer of them is in use.
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
			a.free = slices.DeleteFunc(a.free, func(s *slab) bool { return drop[s.chunk] })
			a.large = slices.DeleteFunc(a.large, func(c *chunk) bool { return drop[c] })
		}
	}
	return errors.Join(errs...)
}
