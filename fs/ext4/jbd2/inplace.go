package jbd2

import (
	"fmt"
	"math"
	"slices"
)

// inPlace is the sink of volumes without a journal.
type inPlace struct {
	c    *Cache
	list []placed // of the transaction being committed, sorted by block
	bufs []*Buffer
}

func newInPlace(c *Cache) *inPlace { return &inPlace{c: c} }

func (s *inPlace) blocks(dirty, _ int) int { return dirty }

func (s *inPlace) capacity() int { return math.MaxInt }

func (s *inPlace) prepare(n int) error { return s.c.stage.ensure(n) }

func (s *inPlace) freeze(t *transaction) error {
	s.bufs = s.bufs[:0]
	for _, b := range t.dirty {
		s.bufs = append(s.bufs, b)
	}
	slices.SortFunc(s.bufs, func(a, b *Buffer) int {
		if a.block < b.block {
			return -1
		}
		return 1
	})
	places, err := s.c.stage.take(len(s.bufs), nil)
	if err != nil {
		return fmt.Errorf("memory for a commit of %d blocks: %w", len(s.bufs), err)
	}
	s.list = s.list[:0]
	for i, b := range s.bufs {
		copy(s.c.stage.data(places[i]), b.data)
		s.list = append(s.list, placed{b.block, places[i]})
	}
	return nil
}

func (s *inPlace) commit(t *transaction) error {
	// Data before the metadata that points at it.
	if err := s.c.FlushDevice(); err != nil {
		return fmt.Errorf("flush before commit %d: %w", t.tid, err)
	}
	if len(s.list) == 0 {
		return nil
	}
	if err := s.c.writeStaged(s.list, false, func(n int64) { s.c.counters.written.Add(n) }); err != nil {
		return fmt.Errorf("commit %d: %w", t.tid, err)
	}
	if err := s.c.FlushDevice(); err != nil {
		return fmt.Errorf("flush after commit %d: %w", t.tid, err)
	}
	s.giveUp()
	for _, b := range s.bufs {
		b.unref()
	}
	return nil
}

func (s *inPlace) giveUp() {
	for _, p := range s.list {
		s.c.stage.drop(p.from)
	}
	s.list = s.list[:0]
}

func (s *inPlace) mark() error { return nil }

func (s *inPlace) close(aborted, _ bool) error {
	if aborted {
		return nil
	}
	return s.c.FlushDevice()
}
