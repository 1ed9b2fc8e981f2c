package contents

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Fallocate modes, as in fallocate(2).
const (
	FallocKeepSize  = 0x01
	FallocPunchHole = 0x02
	FallocZeroRange = 0x10
)

// Fallocate allocates, zeroes or punches the n bytes from off, as fallocate(2) says. Other modes are ErrNotSup: collapsing and
// inserting ranges, too, which Linux's FUSE refuses before it asks.
func Fallocate(i *volume.Inode, mode uint32, off, n int64, may ...volume.May) error {
	if !i.FS.Writable() {
		return volume.ErrReadOnly
	}
	if off < 0 || n <= 0 {
		return volume.ErrInvalid
	}
	return i.FS.Change(may, func(o *volume.Op) error {
		o.Lock(i)
		switch {
		case !i.Disk.IsReg():
			return notRegular(i)
		case off > i.FS.MaxSizeExtents()-n:
			return volume.ErrTooBig
		case !i.ExtentMapped() && mode != FallocPunchHole|FallocKeepSize:
			return volume.ErrNotSup // there are no unwritten blocks in a block map
		case i.Disk.Flags&disk.FlImmutable != 0, i.Disk.Flags&disk.FlAppend != 0 && mode&^FallocKeepSize != 0:
			return volume.ErrPerm
		}
		if i.IsInline() {
			c, err := ReadInline(i)
			if err == nil {
				err = outgrow(i, o, c)
			}
			if err != nil {
				return err
			}
		}
		switch mode {
		case 0, FallocKeepSize:
			return preallocate(i, o, off, off+n, mode == FallocKeepSize)
		case FallocPunchHole | FallocKeepSize:
			return punch(i, o, off, off+n)
		case FallocZeroRange, FallocZeroRange | FallocKeepSize:
			return zeroRange(i, o, off, off+n, mode&FallocKeepSize != 0)
		}
		return volume.ErrNotSup
	})
}

// blocksOver is the logical blocks that bytes [from, to) touch.
func blocksOver(i *volume.Inode, from, to int64) (first, end uint32) {
	return i.FS.Logical(from), i.FS.LogicalEnd(to)
}

// blocksWithin is the logical blocks that lie wholly in bytes [from, to); none when first is end.
func blocksWithin(i *volume.Inode, from, to int64) (first, end uint32) {
	first, end = i.FS.LogicalEnd(from), i.FS.Logical(to)
	return first, max(first, end)
}

// preallocate fills the holes under bytes [from, to) with unwritten extents. Mu is held.
func preallocate(i *volume.Inode, o *volume.Op, from, to int64, keepSize bool) error {
	if !keepSize {
		if err := cleanTail(i, o); err != nil {
			return err
		}
	}
	l, end := blocksOver(i, from, to)
	for most := MaxExtentsPerHandle; l < end; {
		next := l
		err := o.Do(4+MaxExtentsPerHandle*CreditsPerExtent, func() (err error) {
			if next, err = preallocateSome(i, o, l, end, most); err != nil {
				return err
			}
			if !keepSize && next >= end {
				// Only now: after ErrNoSpace the size is what it was.
				i.Disk.Size = max(i.Disk.Size, uint64(to))
			}
			i.Touch(time.Now()) // even where nothing was missing, and with the size kept: the kernel does
			return i.Store(o)
		})
		switch {
		case err == nil:
			l = next
		case errors.Is(err, volume.ErrNoSpace) && most > 1:
			most = 1 // what there is room for stays with the file
		default:
			return err
		}
	}
	return nil
}

func preallocateSome(i *volume.Inode, o *volume.Op, l, end uint32, most int) (uint32, error) {
	t := Tree(i, o)
	for k := 0; l < end && k < most; k++ {
		x, err := t.Map(l, end-l)
		if err != nil {
			return l, err
		}
		if !x.Hole() {
			l = x.End()
			continue
		}
		b, n, err := AllocBlocks(i, o, BlockGoal(i, l), min(x.Len, extent.MaxUnwritten))
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
func zeroEdges(i *volume.Inode, from, to int64) error {
	first, last := from>>i.FS.BlockBits, to>>i.FS.BlockBits
	a, b := int(from&int64(i.FS.BlockSize-1)), int(to&int64(i.FS.BlockSize-1))
	if first == last {
		return zeroPart(i, i.FS.Logical(from), a, b)
	}
	if a != 0 {
		if err := zeroPart(i, i.FS.Logical(from), a, i.FS.BlockSize); err != nil {
			return err
		}
	}
	if b != 0 {
		return zeroPart(i, i.FS.Logical(to), 0, b)
	}
	return nil
}

// punch frees the blocks within bytes [from, to) and zeroes the rest. Freeing comes first: a hole within one extent can
// need a node, and if there is no room for one the file is as it was.
func punch(i *volume.Inode, o *volume.Op, from, to int64) error {
	first, end := blocksWithin(i, from, to)
	if first < end {
		if err := RemoveBlocks(i, o, first, end, false); err != nil {
			return err
		}
	}
	// Past the end there may be preallocated blocks: whole ones are gone, the last block's tail is zero already.
	if err := zeroEdges(i, from, to); err != nil {
		return err
	}
	return storeTouched(i, o, int64(i.Disk.Size))
}

// storeTouched sets size and times.
func storeTouched(i *volume.Inode, o *volume.Op, size int64) error {
	return o.Do(4, func() error {
		i.Disk.Size = uint64(size)
		i.Touch(time.Now())
		return i.Store(o)
	})
}

// zeroRange makes bytes [from, to) read as zeroes and allocated. The holes come first, since there may be no room to fill
// them: until then nothing that can be read is changed.
func zeroRange(i *volume.Inode, o *volume.Op, from, to int64, keepSize bool) error {
	if !keepSize {
		if err := cleanTail(i, o); err != nil {
			return err
		}
	}
	if err := preallocate(i, o, from, to, true); err != nil {
		return err
	}
	first, end := blocksWithin(i, from, to)
	if err := unwrite(i, o, first, end); err != nil {
		return err
	}
	if err := zeroEdges(i, from, to); err != nil {
		return err
	}
	size := int64(i.Disk.Size)
	if !keepSize {
		size = max(size, to)
	}
	return storeTouched(i, o, size)
}

// unwrite makes logical blocks [l, end), all of them allocated, read as zeroes: it makes them unwritten, or where there is
// no room for the node which that can need, it writes zeroes.
func unwrite(i *volume.Inode, o *volume.Op, l, end uint32) error {
	for l < end {
		n := atMostExtents(i, l, min(end-l, extent.MaxUnwritten), MaxExtentsPerHandle)
		err := o.Do(removeCredits+CreditsPerExtent*MaxExtentsPerHandle, func() error {
			if err := Extents(i, o).Convert(l, n, true); err != nil || !i.Changed {
				return err
			}
			return i.Store(o)
		})
		if errors.Is(err, volume.ErrNoSpace) {
			err = zeroBlocks(i, l, l+n)
		}
		if err != nil {
			return err
		}
		l += n
	}
	return nil
}

// zeroBlocks writes zeroes to what is written of logical blocks [l, end).
func zeroBlocks(i *volume.Inode, l, end uint32) error {
	return MapRange(i, l, end, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		return zeroExtent(i, x)
	})
}

// zeroExtent writes zeroes to the blocks of x, of which there may be none.
func zeroExtent(i *volume.Inode, x extent.Extent) error {
	if x.Len == 0 {
		return nil
	}
	n := blockdev.Bytes(x.Len) << i.FS.BlockBits
	if !i.FS.Dev.Info().WriteZeroes {
		i.FS.Counters.DataWritten.Add(int64(n)) // else no byte goes to the device
	}
	return i.FS.Dev.WriteZeroes(blockdev.Bytes(x.Pblk)<<i.FS.BlockBits, n)
}

// atMostExtents shortens n blocks from l to what k extents cover.
func atMostExtents(i *volume.Inode, l, n uint32, k int) uint32 {
	got := uint32(0)
	stop := errors.New("enough")
	err := Tree(i, nil).MapRange(l, l+n, func(x extent.Extent) error {
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
