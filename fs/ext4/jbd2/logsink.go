package jbd2

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// logSink writes transactions to the log and, later, their blocks home.
//
// A transaction in the log is: revoke blocks; descriptors, each followed by the blocks it describes; a commit block. It
// is committed once its commit block is on the medium, and that is written only when all before it is.
//
// The copies stay in staging memory until they are home, so a checkpoint never looks at a Buffer: what a later
// transaction does to it cannot get into the way, and the log is not read back.
type logSink struct {
	l   *Log
	c   *Cache
	j   *Journal
	out outgoing

	// Of who commits.
	head  uint32 // where the next transaction goes
	seq   TID    // its number in the log: without gaps, so transactions that change nothing take none
	begun bool   // the superblock says where the log begins

	mu      sync.Mutex
	changed *sync.Cond     // protected by mu: room was made, a write home ended, or something failed
	kick    *sync.Cond     // the checkpointer waits here
	room    uint32         // protected by mu: free blocks of the log
	logged  []*loggedTxn   // protected by mu: committed and not wholly home, oldest first
	live    map[Block]*due // protected by mu: the newest committed copy of each block that is not home
	flying  map[Block]bool // protected by mu: blocks on their way home
	urgent  uint32         // protected by mu: a commit waits for so many free blocks
	all     bool           // protected by mu: someone waits for everything to be home
	err     error          // protected by mu: a checkpoint failed
	full    error          // protected by mu: the last one found no room on the medium
	fulls   uint64         // protected by mu: how many have found none
	retry   bool           // protected by mu: it is to be tried again
	again   *time.Timer    // protected by mu: sets retry
	quit    bool           // protected by mu
	stopped chan struct{}
}

// loggedTxn is a transaction in the log.
type loggedTxn struct {
	tid    TID
	start  uint32 // its first block in the log
	blocks uint32 // how many it takes
	left   int    // blocks whose newest copy it holds; protected by logSink.mu
}

// due is a committed copy that has to go home.
type due struct {
	block   Block
	txn     *loggedTxn
	at      staged
	buf     *Buffer // referenced: the medium is older than it
	writing bool    // on its way home; protected by logSink.mu
	dead    bool    // superseded on its way; protected by logSink.mu
}

// outgoing is the transaction being committed.
type outgoing struct {
	bufs    []*Buffer // sorted by block
	tags    []tag
	places  []staged // revoke blocks, then descriptors and data in the order of the log, then the commit block
	data    []int    // for each of bufs, its index in places
	revoked []Block
	room    bool // the log's blocks for it are taken
	ready   bool // all but the commit block are as they go out
}

// groups returns how many revoke blocks and descriptors so many blocks need.
func (s *logSink) groups(dirty, revoked int) (revokeBlocks, descriptors int) {
	return (revoked + s.l.lay.revokesPerBlock() - 1) / s.l.lay.revokesPerBlock(),
		(dirty + s.l.lay.tagsPerBlock() - 1) / s.l.lay.tagsPerBlock()
}

func (s *logSink) blocks(dirty, revoked int) int {
	r, d := s.groups(dirty, revoked)
	return r + d + dirty + 1
}

// capacity leaves a block free: a log that is full to the brim would look empty.
func (s *logSink) capacity() int { return int(s.l.capacity() - 1) }

// freeze copies the dirty buffers to where they go out from. The gate is closed: what can wait is left to commit.
func (s *logSink) freeze(t *transaction) error {
	o := &s.out
	o.bufs, o.revoked, o.tags, o.data, o.places = o.bufs[:0], o.revoked[:0], o.tags[:0], o.data[:0], o.places[:0]
	o.room, o.ready = false, false
	for _, b := range t.dirty {
		o.bufs = append(o.bufs, b)
	}
	for b := range t.revoked {
		o.revoked = append(o.revoked, b)
	}
	if len(o.bufs) == 0 && len(o.revoked) == 0 {
		return nil
	}
	slices.SortFunc(o.bufs, func(a, b *Buffer) int { return cmp.Compare(a.block, b.block) })
	nr, nd := s.groups(len(o.bufs), len(o.revoked))
	need := nr + nd + len(o.bufs) + 1
	if err := s.prepare(need); err != nil {
		return fmt.Errorf("memory for a commit of %d blocks: %w", len(o.bufs), err)
	}
	var err error
	if o.places, err = s.c.stage.take(need, o.places); err != nil {
		return err
	}
	per := s.l.lay.tagsPerBlock()
	for i, b := range o.bufs {
		at := nr + i + i/per + 1
		p := s.c.stage.data(o.places[at])
		copy(p, b.data)
		o.data = append(o.data, at)
	}
	return nil
}

// commit writes the transaction to the log, with the same bytes to the same blocks each time it is tried.
func (s *logSink) commit(*transaction) error {
	o := &s.out
	if len(o.places) == 0 {
		// Nothing changed; the callers that wait want their file data durable.
		if err := s.c.FlushDevice(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		return nil
	}
	if !o.room {
		if err := s.reserve(uint32(len(o.places))); err != nil {
			return err
		}
		o.room = true
	}
	if !o.ready {
		s.describe(o)
		o.ready = true
	}
	if err := s.write(o); err != nil {
		return fmt.Errorf("commit %d: %w", s.seq, err)
	}
	s.account(o)
	return nil
}

// giveUp releases a transaction that will not be written. The room that it took in the log does not matter any more.
func (s *logSink) giveUp() {
	s.c.stage.drop(s.out.places...)
	s.out.places = s.out.places[:0]
}

// describe makes the blocks that describe the others, and puts those in the form that they have in the log.
func (s *logSink) describe(o *outgoing) {
	lay := s.l.lay
	mem := func(i int) []byte { return s.c.stage.data(o.places[i]) }
	nr, _ := s.groups(len(o.bufs), len(o.revoked))
	slices.Sort(o.revoked)
	for i := range nr {
		from := i * lay.revokesPerBlock()
		lay.putRevoke(mem(i), s.seq, o.revoked[from:min(from+lay.revokesPerBlock(), len(o.revoked))])
	}
	for i, b := range o.bufs {
		p := mem(o.data[i])
		g := tag{block: b.block}
		if be.Uint32(p) == magic {
			// A block that looks like one of the journal's own would end recovery.
			g.flags = tagEscape
			clear(p[:4])
		}
		if lay.features.checksums() {
			g.sum = lay.dataSum(s.seq, p)
		}
		o.tags = append(o.tags, g)
	}
	per := lay.tagsPerBlock()
	for i := 0; i < len(o.tags); i += per {
		lay.putDescriptor(mem(o.data[i]-1), s.seq, o.tags[i:min(i+per, len(o.tags))])
	}
}

// write puts the transaction on the medium.
func (s *logSink) write(o *outgoing) error {
	lay := s.l.lay
	mem := func(i int) []byte { return s.c.stage.data(o.places[i]) }
	last := len(o.places) - 1
	lay.putCommit(mem(last), s.seq, time.Now())

	// A log that was empty at mount: say where it begins now. This is durable before the commit block is written, and a
	// log without a commit is still empty.
	if !s.begun {
		if err := s.l.changeSuper(func(sb *superblock) { sb.start, sb.sequence = s.head, s.seq }); err != nil {
			return err
		}
		s.begun = true
	}

	list := make([]placed, len(o.places))
	for i, pos := 0, s.head; i < len(list); {
		phys, run := s.l.m.at(pos)
		run = min(run, s.l.last-pos, uint32(len(list)-i))
		for k := range run {
			list[i] = placed{phys + Block(k), o.places[i]}
			i++
		}
		pos = s.l.advance(pos, run)
	}
	counted := func(n int64) { s.c.counters.log.Add(n) }
	// A power cut may tear a block that is larger than the device's, and a commit block of which a part is there has a
	// wrong checksum: e2fsck, and older kernels, give up the log then. So the block goes ahead with the others, without
	// its beginning.
	ahead, commit := last, mem(last)
	var beginning []byte
	if n := int(s.c.dev.Info().BlockSize); n < len(commit) {
		beginning = bytes.Clone(commit[:n])
		clear(commit[:n])
		ahead++
	}
	if err := s.c.writeStaged(list[:ahead], false, counted); err != nil {
		return err
	}
	copy(commit, beginning)
	// File data and the transaction's blocks, before the commit block that makes them count.
	if err := s.c.FlushDevice(); err != nil {
		return err
	}
	if err := s.c.writeStaged(list[last:], true, counted); err != nil {
		return err
	}

	// The copies go home from here: as they were.
	for i, g := range o.tags {
		if g.flags&tagEscape != 0 {
			be.PutUint32(mem(o.data[i]), magic)
		}
	}
	return nil
}

// account makes the committed transaction's copies the newest, and forgets the blocks it freed: they must not be written
// home any more, because from now on they may hold something else.
func (s *logSink) account(o *outgoing) {
	n := &loggedTxn{tid: s.seq, start: s.head, blocks: uint32(len(o.places)), left: len(o.bufs)}
	s.head = s.l.advance(s.head, n.blocks)
	s.seq++

	s.mu.Lock()
	defer s.mu.Unlock()
	s.logged = append(s.logged, n)
	isData := make([]bool, len(o.places))
	for i, b := range o.bufs {
		if old := s.live[b.block]; old != nil {
			s.retireLocked(old)
		}
		isData[o.data[i]] = true
		s.live[b.block] = &due{block: b.block, txn: n, at: o.places[o.data[i]], buf: b}
	}
	for i, x := range o.places {
		if !isData[i] {
			s.c.stage.drop(x)
		}
	}
	for _, b := range o.revoked {
		// A copy that is on its way home must have arrived before the block is used for something else.
		for s.flying[b] {
			s.changed.Wait()
		}
		if old := s.live[b]; old != nil {
			s.retireLocked(old)
		}
	}
	o.places = o.places[:0] // they have other owners now: giveUp must not drop them
	if s.room < s.l.capacity()/2 || s.stagedMuch() {
		s.kick.Signal()
	}
}

// retireLocked says that a copy need not go home any more.
func (s *logSink) retireLocked(d *due) {
	d.txn.left--
	if s.live[d.block] == d {
		delete(s.live, d.block)
	}
	if d.writing {
		d.dead = true // its memory is still being read: the checkpointer drops it
		return
	}
	s.c.stage.drop(d.at)
	d.buf.unref()
}
