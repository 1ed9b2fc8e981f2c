package ext4

import (
	"errors"
	"math"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Writing a file:
//
//  1. the bytes are copied once, into a pinned buffer of whole blocks, before any lock (in parallel)
//  2. blocks that are written in part are completed: read where they have content, zeroed where not
//  3a. nothing to allocate: straight to the blocks, under mu shared when only whole blocks are written (in parallel)
//  3b. else under mu and a handle: allocate, write the data, then insert the extents, so that the transaction that
//      makes blocks reachable never commits before their bytes are on the device
//  4. size and times

const (
	maxExtentsPerHandle = 16
	// creditsPerExtent: bitmap, descriptor, and the nodes of a path that splits.
	creditsPerExtent = 2 + 2*extent.MaxDepth/2
)

// stage is the bytes of one Write in whole blocks.
type stage struct {
	buf         blockdev.Buffer
	off, end    int64  // in the file
	first, last uint32 // logical blocks
	p           []byte // nil: buf is its caller's, whole blocks that the CPU may not reach
	base        int    // of the first block in buf
	bs          int
	cut         bool // p reaches over the largest size: off and end do not
	keepTimes   bool // see WriteBack
	may         []May
}

// limit keeps the stage below the size max. It reports false if nothing is left.
func (s *stage) limit(max int64) bool {
	if s.off >= max {
		return false
	}
	if s.end > max {
		s.end, s.cut = max, true
		if s.p != nil {
			s.p = s.p[:max-s.off]
		}
		s.last = uint32((s.end - 1) / int64(s.bs))
	}
	return true
}

func (s *stage) skip() int { return int(s.off & int64(s.bs-1)) }

// tail is how many bytes of the last block are written, 0 for all.
func (s *stage) tail() int { return int(s.end & int64(s.bs-1)) }

func (s *stage) at(l uint32) int { return s.base + int(l-s.first)*s.bs }

func (s *stage) slice(l, n uint32) blockdev.Slice { return s.buf.Slice(s.at(l), int(n)*s.bs) }

// fill puts the bytes in place; again after the first and last block were read.
func (s *stage) fill() { copy(s.buf.Bytes()[s.skip():], s.p) }

// Write writes p at off and returns how much of it was written: less than len(p) only with an error.
func (i *Inode) Write(off int64, p []byte, may ...May) (n int, err error) {
	return i.writeAt(&stage{off: off, end: off + int64(len(p)), p: p, bs: i.fs.bs, may: may})
}

// WriteBack is Write for bytes that a cache above held, which knows when they were changed and says so by SetAttr,
// perhaps before this: the times stay.
func (i *Inode) WriteBack(off int64, p []byte) (n int, err error) {
	return i.writeAt(&stage{off: off, end: off + int64(len(p)), p: p, bs: i.fs.bs, keepTimes: true})
}

func (i *Inode) writeAt(s *stage) (n int, err error) {
	off := s.off
	if !i.fs.writable() {
		return 0, ErrReadOnly
	}
	if off < 0 {
		return 0, ErrInvalid
	}
	if s.end == off {
		return 0, nil
	}
	if s.end < off {
		s.end = math.MaxInt64
	}
	if !s.limit(i.fs.maxSizeExtents()) {
		return 0, ErrTooBig
	}
	s.first, s.last = i.fs.logical(off), i.fs.logicalEnd(s.end)-1
	if s.p != nil {
		if s.buf, err = i.fs.dev.Alloc(int(s.last-s.first+1) * s.bs); err != nil {
			return 0, err
		}
		defer s.buf.Release()
		s.fill()
	}
	if s.skip() == 0 && s.tail() == 0 {
		done, err := i.overwriteShared(s)
		if err != nil {
			return 0, i.fs.note(err) // how much of it is on the medium is not known
		}
		if done {
			return int(s.end - off), nil
		}
	}
	l := s.first
	err = i.fs.change(s.may, func(o *op) error {
		o.lock(i)
		return i.write(o, s, &l)
	})
	if err == nil && s.cut {
		err = ErrTooBig
	}
	return int(max(min(int64(l)<<i.fs.bits, s.end)-off, 0)), err
}

// overwriteShared writes whole blocks that are all allocated, within the size, under mu shared. It reports false when
// that is not so.
func (i *Inode) overwriteShared(s *stage) (bool, error) {
	i.mu.RLock()
	ok := i.d.IsReg() && s.end <= int64(i.d.Size) && i.d.Flags&(disk.FlInlineData|disk.FlImmutable|disk.FlAppend) == 0
	var list ioList
	if ok {
		err := i.mapRange(s.first, s.last+1, func(x extent.Extent) error {
			if x.Hole() || x.Unwritten {
				return errNotAllocated
			}
			list.add(blockdev.OpWrite, blockdev.Bytes(x.Pblk)<<i.fs.bits, s.slice(x.Lblk, x.Len))
			return nil
		})
		if err == nil {
			i.fs.stats.dataWritten.Add(list.bytes)
			err = list.do(i.fs.dev)
		}
		if ok = !errors.Is(err, errNotAllocated); ok && err != nil {
			i.mu.RUnlock()
			return false, err
		}
	}
	now := time.Now()
	fresh := ok && now.Sub(i.d.Mtime.Time()).Abs() < timeGrain && i.d.Mtime == i.d.Ctime
	i.mu.RUnlock()
	if !ok || fresh || s.keepTimes {
		return ok, nil
	}
	return true, i.fs.change(nil, func(o *op) error {
		o.lock(i)
		return o.do(2, func() error { return i.storeTimes(o, func() { i.touch(now) }) })
	})
}

var errNotAllocated = errors.New("not allocated")

// write is Write under mu, from logical block l on, which it moves.
func (i *Inode) write(o *op, s *stage, l *uint32) error {
	if !i.d.IsReg() {
		return i.notRegular()
	}
	if i.d.Flags&disk.FlImmutable != 0 || i.d.Flags&disk.FlAppend != 0 && s.off < int64(i.d.Size) {
		return ErrPerm
	}
	if !s.limit(i.maxSize()) {
		return ErrTooBig
	}
	if done, err := i.writeInline(o, s); done || err != nil {
		if done && err == nil {
			*l = s.last + 1
		}
		return err
	}
	if s.off > int64(i.d.Size) {
		if err := i.cleanTail(o); err != nil {
			return err
		}
	}
	if err := i.complete(s); err != nil {
		return err
	}
	for *l <= s.last {
		var err error
		if *l, err = i.writeSome(o, s, *l); err != nil {
			return err
		}
	}
	return nil
}

// complete fills in what s does not cover of its first and last block.
func (i *Inode) complete(s *stage) error {
	b := s.buf.Bytes()
	size := int64(i.d.Size)
	edge := func(l uint32) error {
		start := int64(l) << i.fs.bits
		blk := b[s.at(l) : s.at(l)+s.bs]
		if start >= size {
			clear(blk)
			return nil
		}
		if err := i.readBlocks(s.buf, s.at(l), l, 1); err != nil {
			return err
		}
		if start+int64(s.bs) > size {
			clear(blk[size-start:])
		}
		return nil
	}
	head, tail := s.skip() != 0, s.tail() != 0
	if head || tail && s.first == s.last {
		if err := edge(s.first); err != nil {
			return err
		}
	}
	if tail && s.last != s.first {
		if err := edge(s.last); err != nil {
			return err
		}
	}
	if head || tail {
		s.fill()
	}
	return nil
}

// writeSome writes from logical block l under one handle, and returns where the next one goes on. After an error that
// is where the file has the new bytes up to.
func (i *Inode) writeSome(o *op, s *stage, l uint32) (uint32, error) {
	next, err := i.writeRuns(o, s, l, maxExtentsPerHandle)
	if errors.Is(err, ErrNoSpace) {
		// There may be no room for all of them, or for the nodes that they want in the tree, but for one.
		next, err = i.writeRuns(o, s, l, 1)
	}
	if err != nil {
		return l, err
	}
	return next, nil
}

// writeRuns is writeSome of up to most runs.
func (i *Inode) writeRuns(o *op, s *stage, l uint32, most int) (next uint32, err error) {
	err = o.do(4+maxExtentsPerHandle*creditsPerExtent, func() error {
		w := &writing{i: i, o: o, t: i.tree(o), s: s}
		if err := w.gather(l, most); err != nil {
			return err
		}
		i.fs.stats.dataWritten.Add(w.list.bytes)
		if err := w.list.do(i.fs.dev); err != nil {
			return err
		}
		if err := w.join(); err != nil {
			return err
		}
		next = w.end
		if end := min(int64(next)<<i.fs.bits, s.end); end > int64(i.d.Size) {
			i.d.Size = uint64(end)
			i.changed = true
		}
		now := time.Now()
		switch {
		case !s.keepTimes && (i.changed || now.Sub(i.d.Mtime.Time()).Abs() >= timeGrain || i.d.Mtime != i.d.Ctime):
			return i.storeTimes(o, func() { i.touch(now) })
		case i.changed:
			return i.store(o)
		}
		return nil
	})
	return next, err
}
