package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Collapsing and inserting ranges moves every extent behind them. That is done in one transaction, so that a power cut
// leaves the file as it was or as it will be, if the tree's leaves fit one: some 85,000 extents with a journal of 4 MiB,
// millions with one of 128 MiB. A larger file is moved in steps, as the kernel moves every file: a cut between them
// leaves a file whose bytes are all there, some moved and some not.

// shiftStep is how many leaves one handle moves when the whole tree is too large for one.
const shiftStep = 16

// shiftCredits is how many blocks it dirties to move all extents from logical block from on, and to free those in
// [from, to), when that is done at once. It reports false if they do not fit.
func (i *Inode) shiftCredits(from, to uint32) (int, bool) {
	most := i.fs.jnl.MaxCredits()
	n := 16 + 2*extent.MaxDepth
	err := i.extents(nil).Walk(func(jbd2.Block, int) error {
		if n++; n > most {
			return errStop
		}
		return nil
	}, func(x extent.Extent) error {
		if x.End() > from && x.Lblk < to {
			n += 2 // a bitmap and its descriptor
		}
		return nil
	})
	return n, err == nil && n <= most
}

// collapse takes bytes [off, off+n) out of the file. mu is held.
func (i *Inode) collapse(off, n int64) error {
	mask := int64(i.fs.bs - 1)
	size := int64(i.d.Size)
	if off&mask != 0 || n&mask != 0 || off+n >= size {
		return ErrInvalid
	}
	from, cnt := uint32(off>>i.fs.bits), uint32(n>>i.fs.bits)
	credits, whole := i.shiftCredits(from, from+cnt)
	if !whole {
		return i.collapseSteps(from, cnt)
	}
	return i.fs.do(credits, func(h *jbd2.Handle) error {
		for to := from + cnt; to > from; {
			var err error
			if to, err = i.removeSome(h, from, to, false); err != nil {
				return err // for want of a node to split: nothing was removed
			}
		}
		if _, err := i.extents(h).Collapse(from+cnt, cnt, extent.MaxBlock); err != nil {
			return err
		}
		i.d.Size = uint64(size - n)
		i.touch(time.Now())
		return i.store(h)
	})
}

func (i *Inode) collapseSteps(from, cnt uint32) error {
	if err := i.removeBlocks(from, from+cnt, false); err != nil {
		return err
	}
	for l := from + cnt; l < extent.MaxBlock; {
		err := i.fs.do(removeCredits, func(h *jbd2.Handle) (err error) {
			l, err = i.extents(h).Collapse(l, cnt, shiftStep)
			if l >= extent.MaxBlock {
				i.d.Size -= uint64(cnt) << i.fs.bits
				i.touch(time.Now())
			}
			return errors.Join(err, i.store(h))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// insertRange puts a hole of n bytes at off. mu is held.
func (i *Inode) insertRange(off, n int64) error {
	mask := int64(i.fs.bs - 1)
	size := int64(i.d.Size)
	switch {
	case off&mask != 0 || n&mask != 0 || off >= size:
		return ErrInvalid
	case size > i.maxSize()-n:
		return ErrTooBig
	}
	if last, ok, err := i.extents(nil).Last(); err != nil {
		return err
	} else if ok && int64(last.End())<<i.fs.bits > i.maxSize()-n {
		return ErrTooBig // preallocated past the size
	}
	if err := i.cleanTail(); err != nil {
		return err
	}
	from, cnt := uint32(off>>i.fs.bits), uint32(n>>i.fs.bits)
	credits, whole := i.shiftCredits(from, from)
	step := int(extent.MaxBlock)
	if !whole {
		credits, step = removeCredits, shiftStep
	}
	for to := uint32(extent.MaxBlock); to > from; {
		err := i.fs.do(credits, func(h *jbd2.Handle) (err error) {
			// The first step may want a node, and fails before anything is moved. The size grows with it: extents are
			// not to lie past the size.
			old := to
			if to, err = i.extents(h).Expand(from, to, cnt, step); err != nil {
				return err
			}
			if old == extent.MaxBlock {
				i.d.Size = uint64(size + n)
				i.touch(time.Now())
			}
			return i.store(h)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
