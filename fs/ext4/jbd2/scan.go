package jbd2

import (
	"fmt"
)

// logged is the newest copy of a block in the log.
type logged struct {
	tid     TID
	pos     uint32
	escaped bool
	bad     bool // its checksum is wrong
}

// Recovery is what a log holds beyond the volume. It changes nothing until Replay and Finish.
type Recovery struct {
	l            *Log
	blocks       map[Block]logged
	Transactions int // committed ones found
	RevokeBlocks int // of them
	end          TID // of the first transaction that did not commit
	head         uint32
}

// transactionScan is a transaction being read, not known to be committed yet.
type transactionScan struct {
	tags    []loggedTag
	revokes []uint32 // log blocks that hold revoke records
	damage  error    // one of its own blocks fails its checksum
}

type loggedTag struct {
	block Block
	logged
}

// Scan reads the log as far as it was committed. A transaction whose commit block is missing, and all after it, never
// happened: that is how a power cut looks. A transaction that was committed and is damaged is an error.
func (l *Log) Scan() (*Recovery, error) {
	r := &Recovery{l: l, blocks: map[Block]logged{}, end: l.sb.sequence, head: l.sb.start}
	if l.sb.start == 0 {
		r.end++ // the next transaction takes a TID that no old block of the log has
		r.head = l.sb.first
		return r, nil
	}
	s := &scanner{r: r, l: l, pos: l.sb.start, left: l.capacity(), sum: ^uint32(0)}
	var err error
	if s.rd, err = l.reader(l.last); err != nil {
		return nil, err
	}
	defer s.rd.close()
	if err := s.run(); err != nil {
		return nil, err
	}
	if err := s.revoke(); err != nil {
		return nil, err
	}
	for b, g := range r.blocks {
		switch {
		case b >= l.c.blocks:
			return nil, fmt.Errorf("%w: transaction %d writes block %d, the volume has %d", ErrCorrupt, g.tid, b, l.c.blocks)
		case l.m.holds(b):
			return nil, fmt.Errorf("%w: transaction %d writes block %d, which is part of the journal", ErrCorrupt, g.tid, b)
		case g.bad:
			return nil, fmt.Errorf("%w: the copy of block %d in transaction %d fails its checksum", ErrCorrupt, b, g.tid)
		}
	}
	return r, nil
}

// scanner walks the log once around at most.
type scanner struct {
	r    *Recovery
	l    *Log
	rd   *logReader
	pos  uint32
	left uint32 // blocks not seen yet

	txn     transactionScan
	sum     uint32 // running CRC-32 of the first checksum version
	sec     uint64 // time of the last commit
	nsec    uint32
	revokes []revokeBlock // of committed transactions
}

type revokeBlock struct {
	tid TID
	pos uint32
}

// next is the next block of the log, or nil after one round.
func (s *scanner) next() (p []byte, pos uint32, err error) {
	if s.left == 0 {
		return nil, 0, nil
	}
	pos = s.pos
	if p, err = s.rd.block(pos); err != nil {
		return nil, 0, err
	}
	s.pos = s.l.advance(pos, 1)
	s.left--
	return p, pos, nil
}

// run is the first pass: it finds the committed transactions.
func (s *scanner) run() error {
	for {
		p, pos, err := s.next()
		if p == nil || err != nil {
			return err
		}
		h := readHeader(p)
		if h.magic != magic || h.sequence != s.r.end {
			return nil
		}
		switch h.blockType {
		case typeDescriptor:
			more, err := s.descriptor(p)
			if err != nil || !more {
				return err
			}
		case typeRevoke:
			if !s.l.lay.tailOK(p) && s.txn.damage == nil {
				s.txn.damage = fmt.Errorf("revoke block at journal block %d fails its checksum", pos)
			}
			s.txn.revokes = append(s.txn.revokes, pos)
		case typeCommit:
			more, err := s.commit(p, pos)
			if err != nil || !more {
				return err
			}
		default:
			return nil
		}
	}
}

// descriptor takes the tags of a descriptor block and reads past its data.
func (s *scanner) descriptor(p []byte) (more bool, err error) {
	lay, tid := s.l.lay, s.r.end
	if !lay.tailOK(p) && s.txn.damage == nil {
		s.txn.damage = fmt.Errorf("a descriptor block fails its checksum")
	}
	s.sum1(p)
	tags, err := lay.parseTags(p)
	if err != nil {
		if s.txn.damage == nil {
			s.txn.damage = err
		}
		// It is not known where the next block is.
		return false, nil
	}
	for _, t := range tags {
		p, pos, err := s.next()
		if p == nil || err != nil {
			return false, err
		}
		s.sum1(p)
		g := logged{tid: tid, pos: pos, escaped: t.flags&tagEscape != 0}
		if lay.features.checksums() && !lay.sumOK(t, lay.dataSum(tid, p)) {
			g.bad = true
		}
		s.txn.tags = append(s.txn.tags, loggedTag{t.block, g})
	}
	return true, nil
}

func (s *scanner) sum1(p []byte) {
	if s.l.sb.compat&compatChecksum != 0 {
		s.sum = crc32be(s.sum, p)
	}
}

// commit ends a transaction.
func (s *scanner) commit(p []byte, pos uint32) (more bool, err error) {
	tid := s.r.end
	async := s.l.lay.features&FeatureAsyncCommit != 0
	sec, nsec := commitTime(p)
	damage := s.txn.damage
	if !s.l.lay.commitOK(p) {
		damage = fmt.Errorf("commit block at journal block %d fails its checksum", pos)
	}
	if s.l.sb.compat&compatChecksum != 0 && !s.sum1OK(p) {
		damage = fmt.Errorf("checksum of the whole transaction is wrong")
	}
	if damage != nil {
		if sec < s.sec || sec == s.sec && nsec < s.nsec {
			return false, nil // left over from an earlier life of the journal
		}
		if async {
			return false, nil // the commit block may have overtaken what it commits
		}
		return false, fmt.Errorf("%w: transaction %d: %w", ErrCorrupt, tid, damage)
	}
	if async && s.torn() {
		return false, nil
	}
	for _, t := range s.txn.tags {
		s.r.blocks[t.block] = t.logged
	}
	for _, pos := range s.txn.revokes {
		s.revokes = append(s.revokes, revokeBlock{tid, pos})
	}
	s.r.RevokeBlocks += len(s.txn.revokes)
	s.sec, s.nsec = sec, nsec
	s.txn = transactionScan{}
	s.sum = ^uint32(0)
	s.r.Transactions++
	s.r.end++
	s.r.head = s.pos
	return true, nil
}

// sum1OK checks the first checksum version. A commit block without a checksum was written before the feature was set.
func (s *scanner) sum1OK(p []byte) bool {
	kind, size, sum := p[12], p[13], be.Uint32(p[commitSumOff:])
	if kind == 0 && size == 0 && sum == 0 {
		return true
	}
	return kind == checksumCRC32 && size == 4 && sum == s.sum
}

func (s *scanner) torn() bool {
	for _, t := range s.txn.tags {
		if t.bad {
			return true
		}
	}
	return false
}

// revoke is the second pass: it drops the blocks that were freed after their last copy was logged.
func (s *scanner) revoke() error {
	for _, v := range s.revokes {
		p, err := s.rd.block(v.pos)
		if err != nil {
			return err
		}
		err = s.l.lay.eachRevoke(p, func(b Block) {
			if g, ok := s.r.blocks[b]; ok && !g.tid.After(v.tid) {
				delete(s.r.blocks, b)
			}
		})
		if err != nil {
			return fmt.Errorf("transaction %d: %w", v.tid, err)
		}
	}
	return nil
}
