package jbd2

import (
	"fmt"
	"sync"

	"github.com/lanefs/lanefs/blockdev"
)

// stageChunk is how much staging memory is asked for at a time; it bounds the length of one sequential write.
const stageChunk = 256 << 10

// maxSpare is how many unused chunks are kept for the next transaction beyond those that are reserved.
const maxSpare = 32

// stage is the staging memory: pinned, block-sized places that copies of dirty buffers are written from. Places are
// handed out one after the other, so that the blocks of a transaction lie side by side and go out in large writes; a
// chunk is used again when all its places have been dropped.
type stage struct {
	dev  blockdev.Device
	size int
	per  int
	most int // chunks

	mu    sync.Mutex
	cur   *stageBuf   // protected by mu: places are taken from here
	spare []*stageBuf // protected by mu
	held  int64       // protected by mu: bytes of all chunks not spare
	have  int         // protected by mu: chunks
	keep  int         // protected by mu: chunks that stay; see reserve
}

type stageBuf struct {
	buf  blockdev.Buffer
	mem  []byte
	used int // places handed out; protected by stage.mu
	live int // places not dropped; protected by stage.mu
}

// staged is one place in staging memory.
type staged struct {
	chunk *stageBuf
	n     int
}

// newStage makes staging memory of at most so many bytes.
func newStage(dev blockdev.Device, size int, most int64) *stage {
	s := &stage{dev: dev, size: size, per: max(stageChunk/size, 4)}
	s.most = max(int(most/int64(s.per*size)), 2)
	return s
}

// reserve sees to it that there are always chunks for n places. It may wait for memory.
func (s *stage) reserve(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep = min(max(s.keep, (n+s.per-1)/s.per), s.most)
	for s.have < s.keep {
		s.mu.Unlock()
		c, err := s.newChunk(blockdev.ForJournal)
		s.mu.Lock()
		if err != nil {
			return err
		}
		s.have++
		s.spare = append(s.spare, c)
	}
	return nil
}

// capacity is how many places there can be.
func (s *stage) capacity() int { return s.most * s.per }

func (s *stage) newChunk(use blockdev.Use) (*stageBuf, error) {
	buf, err := s.dev.Alloc(s.per*s.size, use)
	if err != nil {
		return nil, err
	}
	return &stageBuf{buf: buf, mem: buf.Bytes()}, nil
}

// errStageFull says that staging memory is in use to its limit: it comes back when copies are home.
var errStageFull = fmt.Errorf("staging memory is in use: %w", blockdev.ErrNoMemory)

// ensure sees to it that n places can be taken, without waiting.
func (s *stage) ensure(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ensureLocked(n)
}

func (s *stage) ensureLocked(n int) error {
	room := len(s.spare) * s.per
	if s.cur != nil {
		room += s.per - s.cur.used
	}
	for ; room < n; room += s.per {
		if s.have >= s.most {
			return errStageFull
		}
		c, err := s.newChunk(blockdev.ForJournal | blockdev.NoWait)
		if err != nil {
			return err
		}
		s.have++
		s.spare = append(s.spare, c)
	}
	return nil
}

func (s *stage) data(x staged) []byte { return x.chunk.mem[x.n*s.size : (x.n+1)*s.size] }

// take appends n places to to. On an error none is taken.
func (s *stage) take(n int, to []staged) ([]staged, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ensureLocked(n); err != nil {
		return to, err
	}
	for range n {
		if s.cur == nil || s.cur.used == s.per {
			s.nextLocked()
		}
		to = append(to, staged{s.cur, s.cur.used})
		s.cur.used++
		s.cur.live++
	}
	return to, nil
}

// nextLocked begins a chunk. There is a spare one.
func (s *stage) nextLocked() {
	n := len(s.spare)
	c := s.spare[n-1]
	s.spare = s.spare[:n-1]
	c.used, c.live = 0, 0
	s.held += int64(s.per * s.size)
	old := s.cur
	s.cur = c
	if old != nil && old.live == 0 {
		s.retireLocked(old)
	}
}

func (s *stage) drop(places ...staged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range places {
		s.dropLocked(x)
	}
}

func (s *stage) dropLocked(x staged) {
	c := x.chunk
	c.live--
	switch {
	case c.live < 0:
		panic("jbd2: staging memory dropped twice")
	case c.live > 0:
	case c == s.cur:
		c.used = 0
	default:
		s.retireLocked(c)
	}
}

// retireLocked keeps a few chunks for the next transaction and gives the rest back.
func (s *stage) retireLocked(c *stageBuf) {
	s.held -= int64(s.per * s.size)
	if s.have <= s.keep || len(s.spare) < maxSpare {
		s.spare = append(s.spare, c)
	} else {
		s.have--
		c.buf.Release()
	}
}

func (s *stage) bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

func (s *stage) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.spare {
		c.buf.Release()
	}
	if s.cur != nil && s.cur.live == 0 {
		s.cur.buf.Release()
		s.cur = nil
	}
	s.spare = nil
}

// placed is a block that is to be written from staging memory.
type placed struct {
	to   Block
	from staged
}

// write writes the blocks, which are sorted by destination, neighbours together in large requests. counted tells how
// many bytes were asked for.
func (c *Cache) writeStaged(list []placed, fua bool, counted func(n int64)) error {
	var reqs []*blockdev.Request
	flush := func() error {
		err := c.dev.Do(reqs...)
		for _, r := range reqs {
			err = blockdev.Worse(err, r.Err) // which room would not mend
		}
		reqs = reqs[:0]
		return err
	}
	for i := 0; i < len(list); {
		r := &blockdev.Request{Op: blockdev.OpWrite, Off: c.off(list[i].to), FUA: fua}
		first := i
		for {
			x := list[i].from
			if n := len(r.Bufs); n > 0 && i > first && list[i-1].from.chunk == x.chunk && list[i-1].from.n+1 == x.n {
				r.Bufs[n-1].N += c.blockSize
			} else {
				r.Bufs = append(r.Bufs, x.chunk.buf.Slice(x.n*c.blockSize, c.blockSize))
			}
			i++
			if i == len(list) || list[i].to != list[i-1].to+1 || (i-first)*c.blockSize >= maxRequest {
				break
			}
			// Pieces smaller than a page cannot be strung together in one command unless they lie side by side.
			y := list[i].from
			if c.blockSize < 4096 && (y.chunk != x.chunk || y.n != x.n+1) {
				break
			}
		}
		counted(int64((i - first) * c.blockSize))
		if reqs = append(reqs, r); len(reqs) == maxRequests {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(reqs) == 0 {
		return nil
	}
	return flush()
}
