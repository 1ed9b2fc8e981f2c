package contents

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Writing a file:
//
//  1. the bytes are copied once, into a pinned buffer of whole blocks, before any lock (in parallel); those that begin a
//     Payload and a block stay where they are
//  2. blocks that are written in part are completed: read where they have content, or copied if there is a copy, zeroed where not
//  3a. nothing to allocate: straight to the blocks, under Mu shared when only whole blocks are written (in parallel)
//  3b. else under Mu and a handle: allocate, write the data, then insert the extents, so that the transaction that
//      makes blocks reachable never commits before their bytes are on the device
//  4. size and times

const (
	MaxExtentsPerHandle = 16
	// CreditsPerExtent: bitmap, descriptor, and the nodes of a path that splits.
	CreditsPerExtent = alloc.AllocCredits + 2*extent.MaxDepth/2
)

// stage is the bytes of one Write in whole blocks.
type stage struct {
	buf         blockdev.Buffer
	off, end    int64  // in the file
	first, last uint32 // logical blocks
	p           []byte // nil: buf is its caller's, whole blocks that the CPU may not reach
	placed      bool   // p is in buf already
	base        int    // of the first block in buf
	bs          int
	cut         bool         // p reaches over the largest size: off and end do not
	keepTimes   bool         // see Store
	stop        func() error // see Transfer
	may         []volume.May
	one         [1]volume.May // room for may
}

// stopped is why the stage is not to be written any more. The file's lock is held.
func (s *stage) stopped() error {
	if s.stop == nil {
		return nil
	}
	return s.stop()
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
func Write(i *volume.Inode, off int64, p []byte, may ...volume.May) (n int, err error) {
	return writeAt(i, &stage{off: off, end: off + int64(len(p)), p: p, bs: i.FS.BlockSize, may: may})
}

func writeAt(i *volume.Inode, s *stage) (n int, err error) {
	off := s.off
	if !i.FS.Writable() {
		return 0, volume.ErrReadOnly
	}
	if off < 0 {
		return 0, volume.ErrInvalid
	}
	if s.end == off {
		return 0, nil
	}
	if s.end < off {
		s.end = math.MaxInt64
	}
	if !s.limit(i.FS.MaxSizeExtents()) {
		return 0, volume.ErrTooBig
	}
	s.first, s.last = i.FS.Logical(off), i.FS.LogicalEnd(s.end)-1
	if s.buf == nil {
		if s.buf, err = i.FS.Dev.Alloc(int(s.last-s.first+1) * s.bs); err != nil {
			return 0, err
		}
		defer s.buf.Release()
		s.fill()
		i.FS.Counters.CopiedWritten.Add(int64(len(s.p)))
	}
	if s.skip() == 0 && s.tail() == 0 {
		done, err := overwriteShared(i, s)
		if err != nil {
			return 0, i.FS.Note(err) // how much of it is on the medium is not known
		}
		if done {
			return int(s.end - off), nil
		}
	}
	l := s.first
	err = i.FS.Change(s.may, func(o *volume.Op) error {
		o.LockToWrite(i)
		if err := s.stopped(); err != nil {
			return err
		}
		return write(i, o, s, &l)
	})
	if err == nil && s.cut {
		err = volume.ErrTooBig
	}
	return int(max(min(int64(l)<<i.FS.BlockBits, s.end)-off, 0)), err
}

// overwriteShared writes whole blocks that are all allocated, within the size, under Mu shared. It reports false when
// that is not so.
func overwriteShared(i *volume.Inode, s *stage) (bool, error) {
	i.Mu.RLock()
	if err := s.stopped(); err != nil {
		i.Mu.RUnlock()
		return false, err
	}
	ok := replaceable(i) && s.end <= int64(i.Disk.Size)
	if ok {
		var err error
		if ok, err = overwrite(i, s); err != nil {
			i.Mu.RUnlock()
			return false, err
		}
	}
	now := time.Now()
	fresh := timesFresh(i, now)
	i.Mu.RUnlock()
	if !ok || fresh || s.keepTimes {
		return ok, nil
	}
	return true, touch(i, now)
}

// replaceable reports whether blocks of a file may be written over where they are. Mu is held.
func replaceable(i *volume.Inode) bool {
	return i.Disk.IsReg() && i.Disk.Flags&(disk.FlInlineData|disk.FlImmutable|disk.FlAppend) == 0
}

// timesFresh reports whether an overwrite at now need not change the times. Mu is held.
func timesFresh(i *volume.Inode, now time.Time) bool {
	return now.Sub(i.Disk.Mtime.Time()).Abs() < volume.TimeGrain && i.Disk.Mtime == i.Disk.Ctime
}

// overwrite writes blocks that are all allocated. It reports false when one is not. Mu is held.
func overwrite(i *volume.Inode, s *stage) (bool, error) {
	i.FS.LastBlocks.Drop(i)
	w := look(i, s.first, s.last+1)
	defer w.done()
	for w.next() {
		if w.x.Hole() || w.x.Unwritten {
			return false, nil
		}
		w.list.add(blockdev.OpWrite, blockdev.Bytes(w.x.Pblk)<<i.FS.BlockBits, s.slice(w.x.Lblk, w.x.Len))
	}
	if w.err != nil {
		return false, w.err
	}
	i.FS.Counters.DataWritten.Add(w.list.bytes)
	return true, w.list.do(i.FS.Dev)
}

// write is Write under Mu, from logical block *l on; it moves *l past what is written.
func write(i *volume.Inode, o *volume.Op, s *stage, l *uint32) error {
	if !i.Disk.IsReg() {
		return notRegular(i)
	}
	if i.Disk.Flags&disk.FlImmutable != 0 || i.Disk.Flags&disk.FlAppend != 0 && s.off < int64(i.Disk.Size) {
		return volume.ErrPerm
	}
	if !s.limit(i.MaxSize()) {
		return volume.ErrTooBig
	}
	if done, err := writeInline(i, o, s); done || err != nil {
		if done && err == nil {
			*l = s.last + 1
		}
		return err
	}
	if s.off > int64(i.Disk.Size) {
		i.FS.LastBlocks.Drop(i)
		if err := cleanTail(i, o); err != nil {
			return err
		}
	}
	goesOn := s.skip() != 0 || s.off > 0 && s.off == int64(i.Disk.Size)
	err := complete(i, s)
	i.FS.LastBlocks.Drop(i)
	if err != nil {
		return err
	}
	for *l <= s.last {
		if *l, err = writeSome(i, o, s, *l); err != nil {
			return err
		}
	}
	if goesOn && s.tail() != 0 {
		at := s.at(s.last)
		i.FS.LastBlocks.Keep(i, s.last, s.buf.Bytes()[at:at+s.bs])
	}
	return nil
}

// complete fills in what s does not cover of its first and last block.
func complete(i *volume.Inode, s *stage) error {
	b := s.buf.Bytes()
	size := int64(i.Disk.Size)
	edge := func(l uint32) error {
		start := int64(l) << i.FS.BlockBits
		blk := b[s.at(l) : s.at(l)+s.bs]
		if start >= size {
			clear(blk)
			return nil
		}
		if !i.FS.LastBlocks.Copy(i, l, blk) {
			if err := readBlocks(i, s.buf, s.at(l), l, 1); err != nil {
				return err
			}
		}
		if start+int64(s.bs) > size {
			clear(blk[size-start:])
		}
		return nil
	}
	head, tail := s.skip() != 0, s.tail() != 0
	if s.placed {
		if !tail {
			return nil
		}
		blk := b[s.at(s.last):]
		if int64(s.last)<<i.FS.BlockBits >= size {
			clear(blk[s.tail():s.bs])
			return nil
		}
		// It is read over the payload, of which there is no other copy: the bytes go aside.
		was := slices.Clone(blk[:s.tail()])
		err := edge(s.last)
		i.FS.Counters.CopiedWritten.Add(int64(copy(blk, was)))
		return err
	}
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

// writeSome writes from logical block l under one handle, and returns where the next one goes on. After an error
// that is the end of what is written.
func writeSome(i *volume.Inode, o *volume.Op, s *stage, l uint32) (next uint32, err error) {
	// There may be no room for all runs, or for the nodes that they need in the tree, but for one; or for none, but blocks in their place before it,
	// which the attempts have written, and which count.
	for _, most := range [...]int{MaxExtentsPerHandle, 1, 0} {
		if next, err = writeRuns(i, o, s, l, most, extent.Extent{}); !errors.Is(err, volume.ErrNoSpace) {
			break
		}
	}
	if errors.Is(err, volume.ErrNoSpace) {
		next, err = writeWhole(i, o, s, l, err)
	}
	if err != nil {
		return l, err
	}
	return next, nil
}

// writeWhole is writeSome where l is preallocated and there is no room for a node, which a part of an unwritten extent can need: zeroes are written to the
// rest of the extent, so that all of it is written in the end, and no promise is broken. Only what lies past the end of the file stays
// unwritten, as it must. full is the error if l is not preallocated.
func writeWhole(i *volume.Inode, o *volume.Op, s *stage, l uint32, full error) (next uint32, err error) {
	if !i.ExtentMapped() {
		return l, full
	}
	x, err := Extents(i, nil).Find(l)
	if err != nil {
		return l, err
	}
	if !x.Unwritten {
		return l, full
	}
	end := min(x.End(), s.last+1)
	x.Len = max(end, min(x.End(), sizeBlocks(i, int64(i.Disk.Size)))) - x.Lblk
	// Before the handle, which others may wait for: until it has ended these are zeroes whatever their blocks hold.
	if err := zeroExtent(i, x.Part(x.Lblk, l-x.Lblk)); err != nil {
		return l, err
	}
	if err := zeroExtent(i, x.Part(end, x.End()-end)); err != nil {
		return l, err
	}
	return writeRuns(i, o, s, l, 1, x)
}

// writeRuns is writeSome of up to most runs, and of the blocks before them that are in their place. If whole is not empty, it is what becomes written with the one run, which lies in it.
func writeRuns(i *volume.Inode, o *volume.Op, s *stage, l uint32, most int, whole extent.Extent) (next uint32, err error) {
	err = o.Do(4+MaxExtentsPerHandle*CreditsPerExtent, func() error {
		w := &writing{i: i, o: o, t: Tree(i, o), s: s, whole: whole}
		if err := w.gather(l, most); err != nil {
			return err
		}
		if next = w.end; next == l { // most is 0, and the first block is not in its place
			return volume.ErrNoSpace
		}
		i.FS.Counters.DataWritten.Add(w.list.bytes)
		if err := w.list.do(i.FS.Dev); err != nil {
			return err
		}
		if err := w.join(); err != nil {
			return err
		}
		if end := min(int64(next)<<i.FS.BlockBits, s.end); end > int64(i.Disk.Size) {
			i.Disk.Size = uint64(end)
			i.Changed = true
		}
		now := time.Now()
		switch {
		case !s.keepTimes && (i.Changed || now.Sub(i.Disk.Mtime.Time()).Abs() >= volume.TimeGrain || i.Disk.Mtime != i.Disk.Ctime):
			return i.StoreTimes(o, func() { i.Touch(now) })
		case i.Changed:
			return i.Store(o)
		}
		return nil
	})
	return next, err
}
