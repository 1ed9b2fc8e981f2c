package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// Fallocate allocates, zeroes, punches, collapses or inserts the n bytes from off, as fallocate(2) says.
func (i *Inode) Fallocate(mode uint32, off, n int64, may ...May) error {
	if !i.fs.writable() {
		return ErrReadOnly
	}
	if off < 0 || n <= 0 {
		return ErrInvalid
	}
	return i.fs.change(may, func(o *op) error {
		o.lock(i)
		switch {
		case !i.d.IsReg():
			return i.notRegular()
		case off > i.fs.maxSizeExtents()-n:
			return ErrTooBig
		case !i.extentMapped() && mode != FallocPunchHole|FallocKeepSize:
			return ErrNotSup // there are no unwritten blocks in a block map, and the kernel does not shift one
		case i.d.Flags&disk.FlImmutable != 0, i.d.Flags&disk.FlAppend != 0 && mode&^FallocKeepSize != 0:
			return ErrPerm
		}
		if i.inline() {
			c, err := i.inlineContent()
			if err == nil {
				err = i.outgrow(o, c)
			}
			if err != nil {
				return err
			}
		}
		switch mode {
		case 0, FallocKeepSize:
			return i.preallocate(o, off, off+n, mode == FallocKeepSize)
		case FallocPunchHole | FallocKeepSize:
			return i.punch(o, off, off+n)
		case FallocZeroRange, FallocZeroRange | FallocKeepSize:
			return i.zeroRange(o, off, off+n, mode&FallocKeepSize != 0)
		case FallocCollapseRange:
			return i.collapse(o, off, n)
		case FallocInsertRange:
			return i.insertRange(o, off, n)
		}
		return ErrNotSup
	})
}

// blocksOver is the logical blocks that bytes [from, to) touch.
func (i *Inode) blocksOver(from, to int64) (first, end uint32) {
	return i.fs.logical(from), i.fs.logicalEnd(to)
}

// blocksWithin is the logical blocks that lie wholly in bytes [from, to); none when first is end.
func (i *Inode) blocksWithin(from, to int64) (first, end uint32) {
	first, end = i.fs.logicalEnd(from), i.fs.logical(to)
	return first, max(first, end)
}

// preallocate fills the holes under bytes [from, to) with unwritten extents. mu is held.
func (i *Inode) preallocate(o *op, from, to int64, keepSize bool) error {
	if !keepSize {
		if err := i.cleanTail(o); err != nil {
			return err
		}
	}
	l, end := i.blocksOver(from, to)
	for most := maxExtentsPerHandle; l < end; {
		next := l
		err := o.do(4+maxExtentsPerHandle*creditsPerExtent, func() (err error) {
			if next, err = i.preallocateSome(o, l, end, most); err != nil {
				return err
			}
			if !keepSize && next >= end {
				// Only now: who is told that there was no room sees the size that he knows.
				i.d.Size = max(i.d.Size, uint64(to))
			}
			i.touch(time.Now()) // even where nothing was missing, and with the size kept: the kernel does
			return i.store(o)
		})
		switch {
		case err == nil:
			l = next
		case errors.Is(err, ErrNoSpace) && most > 1:
			most = 1 // what there is room for stays with the file
		default:
			return err
		}
	}
	return nil
}

func (i *Inode) preallocateSome(o *op, l, end uint32, most int) (uint32, error) {
	t := i.tree(o)
	for k := 0; l < end && k < most; k++ {
		x, err := t.Map(l, end-l)
		if err != nil {
			return l, err
		}
		if !x.Hole() {
			l = x.End()
			continue
		}
		b, n, err := i.allocBlocks(o, i.blockGoal(l), min(x.Len, extent.MaxUnwritten))
		if err != nil {
			return l, err
		}
		if _, err := t.Insert(extent.Extent{Lblk: l, Len: n, Pblk: b, Unwritten: true}); err != nil {
			return l, err
		}
		l += n
	}
	return l, nil
}

// zeroEdges zeroes the parts of blocks at both ends of bytes [from, to) that are not whole blocks.
func (i *Inode) zeroEdges(from, to int64) error {
	first, last := from>>i.fs.bits, to>>i.fs.bits
	a, b := int(from&int64(i.fs.bs-1)), int(to&int64(i.fs.bs-1))
	if first == last {
		return i.zeroPart(i.fs.logical(from), a, b)
	}
	if a != 0 {
		if err := i.zeroPart(i.fs.logical(from), a, i.fs.bs); err != nil {
			return err
		}
	}
	if b != 0 {
		return i.zeroPart(i.fs.logical(to), 0, b)
	}
	return nil
}

// punch frees the blocks within bytes [from, to) and zeroes the rest. Freeing comes first: a hole within one extent can
// want a node, and who is told that there is no room for one finds the file as it was.
func (i *Inode) punch(o *op, from, to int64) error {
	first, end := i.blocksWithin(from, to)
	if first < end {
		if err := i.removeBlocks(o, first, end, false); err != nil {
			return err
		}
	}
	// Past the end there may be preallocated blocks: whole ones are gone, the last block's tail is zero already.
	if err := i.zeroEdges(from, to); err != nil {
		return err
	}
	return i.storeTouched(o, int64(i.d.Size))
}

// storeTouched sets size and times.
func (i *Inode) storeTouched(o *op, size int64) error {
	return o.do(4, func() error {
		i.d.Size = uint64(size)
		i.touch(time.Now())
		return i.store(o)
	})
}

// zeroRange makes bytes [from, to) read as zeroes and allocated. The holes come first, since there may be no room to fill
// them: until then nothing that can be read is changed.
func (i *Inode) zeroRange(o *op, from, to int64, keepSize bool) error {
	if !keepSize {
		if err := i.cleanTail(o); err != nil {
			return err
		}
	}
	if err := i.preallocate(o, from, to, true); err != nil {
		return err
	}
	first, end := i.blocksWithin(from, to)
	if err := i.unwrite(o, first, end); err != nil {
		return err
	}
	if err := i.zeroEdges(from, to); err != nil {
		return err
	}
	size := int64(i.d.Size)
	if !keepSize {
		size = max(size, to)
	}
	return i.storeTouched(o, size)
}

// unwrite makes logical blocks [l, end), all of them allocated, read as zeroes: it makes them unwritten, or where there is
// no room for the node which that can want, it writes zeroes.
func (i *Inode) unwrite(o *op, l, end uint32) error {
	for l < end {
		n := i.atMostExtents(l, min(end-l, extent.MaxUnwritten), maxExtentsPerHandle)
		err := o.do(removeCredits+creditsPerExtent*maxExtentsPerHandle, func() error {
			if err := i.extents(o).Convert(l, n, true); err != nil || !i.changed {
				return err
			}
			return i.store(o)
		})
		if errors.Is(err, ErrNoSpace) {
			err = i.zeroBlocks(l, l+n)
		}
		if err != nil {
			return err
		}
		l += n
	}
	return nil
}

// zeroBlocks writes zeroes to what is written of logical blocks [l, end).
func (i *Inode) zeroBlocks(l, end uint32) error {
	return i.mapRange(l, end, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		n := blockdev.Bytes(x.Len) << i.fs.bits
		if !i.fs.dev.Info().WriteZeroes {
			i.fs.stats.dataWritten.Add(int64(n)) // else no byte goes to the device
		}
		return i.fs.dev.WriteZeroes(blockdev.Bytes(x.Pblk)<<i.fs.bits, n)
	})
}

// atMostExtents shortens n blocks from l to what k extents cover.
func (i *Inode) atMostExtents(l, n uint32, k int) uint32 {
	got := uint32(0)
	stop := errors.New("enough")
	err := i.tree(nil).MapRange(l, l+n, func(x extent.Extent) error {
		if k--; k < 0 {
			return stop
		}
		got = x.End() - l
		return nil
	})
	if err != nil && !errors.Is(err, stop) || got == 0 {
		return n
	}
	return got
}

// Fallocate modes, as in fallocate(2).
const (
	FallocKeepSize      = 0x01
	FallocPunchHole     = 0x02
	FallocCollapseRange = 0x08
	FallocZeroRange     = 0x10
	FallocInsertRange   = 0x20
)
