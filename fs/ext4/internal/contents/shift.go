package contents

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Collapsing and inserting ranges moves every extent behind them. That is done in one transaction, so that a power cut
// leaves the file as it was or as it will be, if the tree's leaves fit one: some 85,000 extents with a journal of 4 MiB,
// millions with one of 128 MiB. A larger file is moved in steps, as the kernel moves every file: a cut between them
// leaves a file whose bytes are all there, some moved and some not.

// shiftStep is how many leaves one handle moves when the whole tree is too large for one.
const shiftStep = 16

// shiftCredits is how many blocks it dirties to move all extents from logical block from on, and to free those in
// [from, to), when that is done at once. It reports false if they do not fit.
func shiftCredits(i *volume.Inode, from, to uint32) (int, bool) {
	most := i.FS.Journal.MaxCredits()
	n := 16 + 2*extent.MaxDepth
	err := Extents(i, nil).Walk(func(disk.Block, int) error {
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
func collapse(i *volume.Inode, o *volume.Op, off, n int64) error {
	mask := int64(i.FS.BlockSize - 1)
	size := int64(i.Disk.Size)
	if off&mask != 0 || n&mask != 0 || off+n >= size {
		return volume.ErrInvalid
	}
	from, cnt := i.FS.Logical(off), i.FS.Logical(n)
	credits, whole := shiftCredits(i, from, from+cnt)
	if !whole {
		return collapseSteps(i, o, from, cnt)
	}
	return o.Do(credits, func() error {
		for to := from + cnt; to > from; {
			var err error
			if to, err = removeSome(i, o, from, to, false); err != nil {
				return err // for want of a node to split: nothing was removed
			}
		}
		if _, err := Extents(i, o).Collapse(from+cnt, cnt, extent.MaxBlock); err != nil {
			return err
		}
		i.Disk.Size = uint64(size - n)
		i.Touch(time.Now())
		return i.Store(o)
	})
}

func collapseSteps(i *volume.Inode, o *volume.Op, from, cnt uint32) error {
	if err := RemoveBlocks(i, o, from, from+cnt, false); err != nil {
		return err
	}
	for l := from + cnt; l < extent.MaxBlock; {
		next := l
		err := o.Do(removeCredits, func() (err error) {
			if next, err = Extents(i, o).Collapse(l, cnt, shiftStep); err != nil {
				return err
			}
			if next >= extent.MaxBlock {
				i.Disk.Size -= uint64(cnt) << i.FS.BlockBits
				i.Touch(time.Now())
			}
			return i.Store(o)
		})
		if err != nil {
			return err
		}
		l = next
	}
	return nil
}

// insertRange puts a hole of n bytes at off. mu is held.
func insertRange(i *volume.Inode, o *volume.Op, off, n int64) error {
	mask := int64(i.FS.BlockSize - 1)
	size := int64(i.Disk.Size)
	switch {
	case off&mask != 0 || n&mask != 0 || off >= size:
		return volume.ErrInvalid
	case size > i.MaxSize()-n:
		return volume.ErrTooBig
	}
	if last, ok, err := Extents(i, nil).Last(); err != nil {
		return err
	} else if ok && int64(last.End())<<i.FS.BlockBits > i.MaxSize()-n {
		return volume.ErrTooBig // preallocated past the size
	}
	if err := cleanTail(i, o); err != nil {
		return err
	}
	from, cnt := i.FS.Logical(off), i.FS.Logical(n)
	credits, whole := shiftCredits(i, from, from)
	step := int(extent.MaxBlock)
	if !whole {
		credits, step = removeCredits, shiftStep
	}
	for to := uint32(extent.MaxBlock); to > from; {
		next := to
		err := o.Do(credits, func() (err error) {
			// The size grows with the first step: extents are not to lie past the size.
			if next, err = Extents(i, o).Expand(from, to, cnt, step); err != nil {
				return err
			}
			if to == extent.MaxBlock {
				i.Disk.Size = uint64(size + n)
				i.Touch(time.Now())
			}
			return i.Store(o)
		})
		if err != nil {
			return err
		}
		to = next
	}
	return nil
}

var errStop = errors.New("stop")
