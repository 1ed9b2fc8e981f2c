package jbd2

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// checkpointBatch bounds what is written home at a time, and with it how long a commit that frees one of these blocks
// waits.
const checkpointBatch = 8 << 20

// reserve waits until the log has room for n blocks, and takes it.
func (s *logSink) reserve(n uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(n) > s.capacity() {
		return fmt.Errorf("%w: %d blocks, the log holds %d", ErrTooLarge, n, s.capacity())
	}
	defer func() { s.urgent = 0 }()
	for before := s.fulls; s.room < n; {
		if err := s.stuckLocked(before); err != nil {
			return err
		}
		s.urgent = n
		s.kickLocked()
		s.changed.Wait() // ends with the device's own deadlines: all before us is committed and can go home
	}
	s.room -= n
	return nil
}

// prepare waits until there is staging memory for n blocks. The committed copies that hold it go home for it.
func (s *logSink) prepare(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for before := s.fulls; ; {
		err := s.c.stage.ensure(n)
		if err == nil {
			return nil
		}
		if len(s.logged) == 0 {
			return err // none comes back from us
		}
		if err := s.stuckLocked(before); err != nil {
			return err
		}
		s.all = true
		s.kickLocked()
		s.changed.Wait()
	}
}

// stuckLocked is why checkpoints do not go on: they have failed, or found no room since fulls was before.
func (s *logSink) stuckLocked(before uint64) error {
	if s.err == nil && s.full != nil && s.fulls != before {
		return s.full
	}
	return s.err
}

// kickLocked has the checkpointer look for work, also if it had found no room.
func (s *logSink) kickLocked() {
	s.retry = true
	s.kick.Signal()
}

// sendHome has everything written home that can be, without waiting for it.
func (s *logSink) sendHome() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = true
	s.kick.Signal()
}

// stagedMuch says that committed copies are to be written home: half of the staging memory is in use, so that commits have the other
// half while that goes on.
func (s *logSink) stagedMuch() bool { return s.c.stage.bytes() > s.c.budget.stage/2 }

// checkpointer is the goroutine that writes committed blocks home and moves the log's tail. It sleeps until the log is
// half full, staging memory is short, or a caller waits.
func (s *logSink) checkpointer() {
	defer close(s.stopped)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		busy := s.all || s.room < s.urgent || s.room < s.l.capacity()/2 || s.stagedMuch()
		switch {
		case s.err != nil || s.quit:
			return
		case !busy || len(s.logged) == 0:
			s.all = false
			s.changed.Broadcast()
			s.kick.Wait()
		case s.full != nil && !s.retry:
			s.kick.Wait()
		default:
			s.retry = false
			s.mu.Unlock()
			err := s.checkpoint()
			s.mu.Lock()
			s.doneLocked(err)
			s.changed.Broadcast()
		}
	}
}

// doneLocked notes how a checkpoint has ended.
func (s *logSink) doneLocked(err error) {
	switch {
	case err == nil:
		s.full = nil
	case isFull(err):
		s.full = fmt.Errorf("checkpoint: %w", err)
		s.fulls++
		s.again = time.AfterFunc(s.j.retry, func() {
			s.mu.Lock()
			s.kickLocked()
			s.mu.Unlock()
		})
	default:
		s.err = fmt.Errorf("checkpoint: %w", err)
		go s.j.Abort(s.err) // Journal.mu comes before s.mu
	}
}

// checkpoint writes home what the log holds now and moves the tail past it.
func (s *logSink) checkpoint() error {
	s.mu.Lock()
	if len(s.logged) == 0 {
		s.mu.Unlock()
		return nil
	}
	upto := s.logged[len(s.logged)-1].tid
	list := make([]*due, 0, len(s.live))
	for _, d := range s.live {
		if !d.txn.tid.After(upto) {
			list = append(list, d)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *due) int { return cmp.Compare(a.block, b.block) })

	done := 0
	for batch := range slices.Chunk(list, max(checkpointBatch/s.c.blockSize, 1)) {
		if err := s.writeHome(batch); err != nil {
			return err
		}
		if done += len(batch); s.j.cfg.Home != nil {
			s.j.cfg.Home(done, len(list))
		}
	}
	// What is home must be on the medium before the log gives up its copies.
	if err := s.c.FlushDevice(); err != nil {
		return err
	}
	s.mu.Lock()
	for _, d := range list {
		if !d.dead && s.live[d.block] == d {
			s.retireLocked(d)
		}
	}
	s.mu.Unlock()
	return s.moveTail()
}

// writeHome writes the copies that are still the newest.
func (s *logSink) writeHome(batch []*due) error {
	out := make([]placed, 0, len(batch))
	mine := make([]*due, 0, len(batch))
	s.mu.Lock()
	for _, d := range batch {
		if s.live[d.block] == d {
			d.writing, s.flying[d.block] = true, true
			mine = append(mine, d)
			out = append(out, placed{d.block, d.at})
		}
	}
	s.mu.Unlock()

	err := s.c.writeStaged(out, false, func(n int64) { s.c.counters.written.Add(n) })

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range mine {
		d.writing = false
		delete(s.flying, d.block)
		if d.dead {
			s.c.stage.drop(d.at)
			d.buf.unref()
		}
	}
	s.changed.Broadcast()
	return err
}

// moveTail frees the log up to the first transaction that still has copies to write home.
func (s *logSink) moveTail() error {
	s.mu.Lock()
	n, freed := 0, uint32(0)
	for n < len(s.logged) && s.logged[n].left == 0 {
		freed += s.logged[n].blocks
		n++
	}
	if n == 0 {
		s.mu.Unlock()
		return nil
	}
	end := s.logged[n-1]
	start, tid := s.l.advance(end.start, end.blocks), end.tid+1
	if n < len(s.logged) {
		tid = s.logged[n].tid
	}
	s.mu.Unlock()

	if err := s.l.changeSuper(func(sb *superblock) { sb.start, sb.sequence = start, tid }); err != nil {
		return err
	}
	s.c.counters.checkpoints.Add(1)

	s.mu.Lock()
	defer s.mu.Unlock()
	s.logged = slices.Delete(s.logged, 0, n)
	s.room += freed
	return nil
}

// drain waits until everything committed is home.
func (s *logSink) drain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for before := s.fulls; len(s.logged) > 0; {
		if err := s.stuckLocked(before); err != nil {
			return err
		}
		s.all = true
		s.kickLocked()
		s.changed.Wait()
	}
	return s.err
}

// close leaves the log empty. The committer has ended.
func (s *logSink) close(aborted, failed bool) error {
	var err error
	if !aborted {
		err = s.drain()
	}
	s.mu.Lock()
	s.quit = true
	if s.again != nil {
		s.again.Stop()
	}
	s.kick.Signal()
	s.mu.Unlock()
	<-s.stopped
	for _, d := range s.live {
		s.c.stage.drop(d.at)
		d.buf.unref()
	}
	s.live = nil
	if failed {
		return s.mark()
	}
	if aborted || err != nil {
		return err
	}
	if err := s.c.FlushDevice(); err != nil {
		return err
	}
	return s.l.changeSuper(func(sb *superblock) { sb.start, sb.sequence, sb.head = 0, s.seq, s.head })
}

func (s *logSink) mark() error {
	return s.l.changeSuper(func(sb *superblock) { sb.errno = errnoCorrupt })
}
