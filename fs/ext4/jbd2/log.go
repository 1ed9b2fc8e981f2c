package jbd2

import (
	"fmt"
	"sync"

	"github.com/lanefs/lanefs/blockdev"
)

// Log is the journal's area on the volume: a superblock and a ring of blocks. It is opened once per mount; then comes
// Scan, which says whether there is something to recover, and at last Start.
type Log struct {
	c        *Cache
	m        *logMap
	sbMu     sync.Mutex  // from Start on it protects what of sb changes, and Cache.super
	sb       *superblock // what is on the medium
	lay      *layout
	last     uint32 // the log's blocks are sb.first ≤ n < last
	fastFrom uint32 // the fast-commit area, fastFrom ≤ n < fastTo
	fastTo   uint32
}

// LogInfo is what the journal's superblock says.
type LogInfo struct {
	Version    int // of the superblock
	Blocks     uint32
	First      uint32
	Sequence   TID
	Start      uint32 // 0: nothing to recover
	Errno      int32  // left behind by the mount that aborted it, 0: nothing
	Features   Features
	Checksum1  bool // transactions are summed up by CRC-32 (JBD2_FEATURE_COMPAT_CHECKSUM)
	FastBlocks uint32
	UUID       [16]byte
	Users      uint32
}

// OpenLog reads the superblock of a journal of length blocks, which f maps to the volume.
func OpenLog(c *Cache, length uint32, f MapFunc) (*Log, error) {
	if length == 0 {
		return nil, fmt.Errorf("%w: the journal has no blocks", ErrCorrupt)
	}
	m, err := newLogMap(length, c.blocks, f)
	if err != nil {
		return nil, err
	}
	if c.super == nil { // once, so that a checkpoint needs no memory
		if c.super, err = c.dev.Alloc(c.blockSize, blockdev.ForBlock); err != nil {
			return nil, fmt.Errorf("memory for the journal's superblock: %w", err)
		}
	}
	l := &Log{c: c, m: m}
	p, err := l.readOne(0)
	if err != nil {
		return nil, err
	}
	if l.sb, err = parseSuper(p); err != nil {
		return nil, err
	}
	sb := l.sb
	switch {
	case sb.blockSize != uint32(c.blockSize):
		err = fmt.Errorf("%w: blocks of %d bytes in the journal, of %d in the volume", ErrCorrupt, sb.blockSize, c.blockSize)
	case sb.maxLen > length:
		err = fmt.Errorf("%w: the journal says it has %d blocks, its file has %d", ErrCorrupt, sb.maxLen, length)
	case sb.first == 0 || sb.first >= sb.maxLen:
		err = fmt.Errorf("%w: the log begins at block %d of %d", ErrCorrupt, sb.first, sb.maxLen)
	case sb.users > 1:
		err = fmt.Errorf("%w: the journal is shared by %d volumes", ErrUnsupported, sb.users)
	}
	if err != nil {
		return nil, err
	}
	l.relayout()
	if sb.first >= l.last || sb.start != 0 && (sb.start < sb.first || sb.start >= l.last) {
		return nil, fmt.Errorf("%w: the log goes from block %d to %d and starts at %d", ErrCorrupt, sb.first, l.last, sb.start)
	}
	return l, nil
}

// relayout follows a change of the features.
func (l *Log) relayout() {
	l.last, l.fastFrom, l.fastTo = l.sb.bounds()
	l.lay = l.sb.layout()
}

// Info is what the superblock says now.
func (l *Log) Info() LogInfo {
	s := l.sb
	v := 2
	if s.blockType == typeSuperblockV1 {
		v = 1
	}
	return LogInfo{Version: v, Blocks: s.maxLen, First: s.first, Sequence: s.sequence, Start: s.start, Errno: s.errno,
		Features: s.incompat, Checksum1: s.compat&compatChecksum != 0, FastBlocks: l.fastTo - l.fastFrom, UUID: s.uuid, Users: s.users}
}

// capacity is how many blocks the log has.
func (l *Log) capacity() uint32 { return l.last - l.sb.first }

// advance is the log block n blocks after pos, n at most the capacity.
func (l *Log) advance(pos, n uint32) uint32 {
	if left := l.last - pos; n >= left {
		return l.sb.first + (n - left)
	}
	return pos + n
}

func (l *Log) readOne(n uint32) ([]byte, error) {
	r, err := l.reader(n + 1)
	if err != nil {
		return nil, err
	}
	defer r.close()
	p, err := r.block(n)
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), p...), nil
}

// changeSuper changes the superblock and writes it durably. What it points at must be durable before.
func (l *Log) changeSuper(f func(sb *superblock)) error {
	l.sbMu.Lock()
	defer l.sbMu.Unlock()
	f(l.sb)
	return l.writeSuper()
}

// writeSuper writes the superblock durably.
func (l *Log) writeSuper() error {
	s := l.c.super.Slice(0, l.c.blockSize)
	l.sb.put(s.Bytes())
	phys, _ := l.m.at(0)
	l.c.counters.log.Add(int64(l.c.blockSize))
	if err := l.c.dev.Write(l.c.off(phys), true, s); err != nil {
		return fmt.Errorf("journal superblock: %w", err)
	}
	return nil
}

// logReader reads the journal's blocks in order, many at a time.
type logReader struct {
	l     *Log
	buf   blockdev.Buffer
	limit uint32 // no block from here on is read
	first uint32 // of the window
	count uint32
	size  uint32 // most blocks of the window
}

// reader reads blocks below limit.
func (l *Log) reader(limit uint32) (*logReader, error) {
	size := max(maxRequest/l.c.blockSize, 1)
	if limit == 1 {
		size = 1
	}
	buf, err := l.c.dev.Alloc(size * l.c.blockSize)
	if err != nil {
		return nil, fmt.Errorf("memory to read the journal: %w", err)
	}
	return &logReader{l: l, buf: buf, limit: limit, size: uint32(size)}, nil
}

func (r *logReader) close() { r.buf.Release() }

// block is the contents of block n, valid until the next call.
func (r *logReader) block(n uint32) ([]byte, error) {
	bs := r.l.c.blockSize
	if n < r.first || n-r.first >= r.count {
		r.first, r.count = n, 0
		var reqs []*blockdev.Request
		want := min(r.size, r.limit-n)
		for got := uint32(0); got < want; {
			phys, run := r.l.m.at(n + got)
			run = min(run, want-got)
			reqs = append(reqs, &blockdev.Request{Op: blockdev.OpRead, Off: r.l.c.off(phys),
				Bufs: []blockdev.Slice{r.buf.Slice(int(got)*bs, int(run)*bs)}})
			got += run
		}
		if err := r.l.c.dev.Do(reqs...); err != nil {
			return nil, fmt.Errorf("journal block %d: %w", n, err)
		}
		r.l.c.counters.read.Add(int64(want) * int64(bs))
		r.count = want
	}
	return r.buf.Bytes()[int(n-r.first)*bs:][:bs], nil
}
