package contents

import (
	"bytes"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// removeStep is how many extents one handle removes: each can touch a bitmap and a descriptor of its own, and the path.
const (
	removeStep    = 16
	removeCredits = 8 + removeStep*alloc.FreeCredits + 2*extent.MaxDepth
)

// Resize sets the size of a regular file, and has set change other members with it. It reports false if there is nothing to
// do; then set was not called. Mu is held.
func Resize(i *volume.Inode, o *volume.Op, size int64, set func()) (bool, error) {
	switch {
	case !i.Disk.IsReg():
		return false, notRegular(i)
	case size < 0:
		return false, volume.ErrInvalid
	case size > i.MaxSize():
		return false, volume.ErrTooBig
	case size == int64(i.Disk.Size) && !mappedBehind(i, size):
		return false, nil
	}
	if i.IsInline() {
		if done, err := resizeInline(i, o, size, set); done || err != nil {
			return done, err
		}
	}
	if size > int64(i.Disk.Size) {
		if err := cleanTail(i, o); err != nil {
			return false, err
		}
		return true, o.Do(4, func() error {
			i.Disk.Size = uint64(size)
			i.Touch(time.Now())
			set()
			return i.Store(o)
		})
	}
	i.DropWindow()
	return true, shorten(i, o, size, set)
}

// shorten makes the file smaller:
//
//  1. the block in which it will end is read, which may fail
//  2. one transaction sets the size, and frees the blocks behind it if they are few. Else, or if the last block has bytes
//     that are to become zero, the inode is an orphan from then on: the next mount would finish it
//  3. finishResize
//
// Nothing that can be read is changed before the size is. When step 3 fails, what is past the size is no part of the file: it
// is dealt with before the file grows again, or at the next mount.
func shorten(i *volume.Inode, o *volume.Op, size int64, set func()) error {
	tail, err := tailAfter(i, size)
	if err != nil {
		return err
	}
	defer tail.release()
	first := sizeBlocks(i, size)
	err = o.Do(8+removeCredits, func() error {
		i.Disk.Size = uint64(size)
		i.CleanEnd = tail.clean()
		i.Touch(time.Now())
		set()
		end, err := removeSome(i, o, first, extent.MaxBlock, false)
		if err != nil {
			return err
		}
		if end > first || !tail.clean() {
			i.Shortens = true
			if err := i.FS.AddOrphan(o, i); err != nil {
				return err
			}
		}
		return i.Store(o)
	})
	if err != nil || !i.Shortens {
		return err
	}
	return finishResize(i, o, tail)
}

// mappedBehind says whether there are blocks behind the first size bytes: a truncate frees them even when the size stays.
func mappedBehind(i *volume.Inode, size int64) bool {
	if i.IsInline() {
		return false
	}
	l := sizeBlocks(i, size)
	x, err := Tree(i, nil).Map(l, extent.MaxBlock-l)
	return err == nil && (!x.Hole() || x.End() < extent.MaxBlock)
}

// sizeBlocks is how many blocks the first size bytes take.
func sizeBlocks(i *volume.Inode, size int64) uint32 {
	return i.FS.LogicalEnd(size)
}

// finishResize zeroes what follows the size in the last block, frees what lies past it, and takes the inode off the orphans.
// tail is the last block, nil to read it. Mu is held.
func finishResize(i *volume.Inode, o *volume.Op, tail *partial) error {
	if tail == nil {
		var err error
		if tail, err = tailAfter(i, int64(i.Disk.Size)); err != nil {
			return err
		}
		defer tail.release()
	}
	if err := tail.write(); err != nil {
		return err
	}
	i.CleanEnd = true
	if err := RemoveBlocks(i, o, sizeBlocks(i, int64(i.Disk.Size)), extent.MaxBlock, false); err != nil {
		return err
	}
	return endShorten(i, o)
}

// endShorten takes an inode off the orphans that has nothing past its size any more. Mu is held.
func endShorten(i *volume.Inode, o *volume.Op) error {
	if i.Disk.LinksCount == 0 {
		i.Shortens = false
		return nil // it stays an orphan: it is open, or being freed
	}
	return o.Do(6, func() error {
		i.Shortens = false
		if err := i.FS.RemoveOrphan(o, i); err != nil {
			return err
		}
		return i.Store(o)
	})
}

// FinishTruncate is finishResize for an orphan found at mount.
func FinishTruncate(i *volume.Inode) error {
	return i.FS.Change(nil, func(o *volume.Op) error {
		o.Lock(i)
		if !i.Disk.IsReg() || i.IsInline() {
			return endShorten(i, o)
		}
		return finishResize(i, o, nil)
	})
}

// cleanTail makes sure that there is nothing past the size, for the file to grow over it: no blocks of a truncation that
// failed half-way, and zeroes in the last block. They are there unless a power cut undid an append but left its bytes, or
// another driver left other bytes there. Mu is held.
func cleanTail(i *volume.Inode, o *volume.Op) error {
	switch {
	case i.IsInline():
		return nil
	case i.Shortens:
		return finishResize(i, o, nil)
	case i.CleanEnd:
		return nil
	}
	tail, err := tailAfter(i, int64(i.Disk.Size))
	if err == nil {
		err = tail.write()
		tail.release()
	}
	i.CleanEnd = err == nil
	return err
}

// partial is a block of which a part is to become zero.
type partial struct {
	i   *volume.Inode
	buf blockdev.Buffer // nil: it is zero already, or not there
	off blockdev.Bytes
}

func (p *partial) clean() bool { return p.buf == nil }

func (p *partial) release() {
	if p.buf != nil {
		p.buf.Release()
		p.buf = nil
	}
}

// write writes the block with its zeroes.
func (p *partial) write() error {
	if p.clean() {
		return nil
	}
	p.i.FS.Counters.DataWritten.Add(int64(p.i.FS.BlockSize))
	return p.i.FS.Dev.Write(p.off, false, p.buf.Slice(0, p.i.FS.BlockSize))
}

// tailAfter is the block that holds the byte at off, to become zero from there on. Mu is held.
func tailAfter(i *volume.Inode, off int64) (*partial, error) {
	skip := int(off & int64(i.FS.BlockSize-1))
	if skip == 0 {
		return &partial{}, nil
	}
	return readPartial(i, i.FS.Logical(off), skip, i.FS.BlockSize)
}

// readPartial reads logical block l, of which bytes [from, to) are to become zero, if it is allocated and written.
func readPartial(i *volume.Inode, l uint32, from, to int) (*partial, error) {
	p := &partial{i: i}
	if l >= extent.MaxBlock {
		return p, nil // the size is more than a file can have
	}
	err := MapRange(i, l, l+1, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		buf, err := i.FS.Dev.Alloc(i.FS.BlockSize, blockdev.ForBlock)
		if err != nil {
			return err
		}
		p.buf, p.off = buf, blockdev.Bytes(x.Pblk)<<i.FS.BlockBits
		if err := i.FS.Dev.Read(p.off, buf.Slice(0, i.FS.BlockSize)); err != nil {
			return err
		}
		i.FS.Counters.DataRead.Add(int64(i.FS.BlockSize))
		part := buf.Bytes()[from:to]
		if bytes.Count(part, []byte{0}) == len(part) {
			p.release()
			return nil
		}
		clear(part)
		return nil
	})
	if err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

// zeroPart zeroes bytes [from, to) of logical block l, if it is allocated and written.
func zeroPart(i *volume.Inode, l uint32, from, to int) error {
	p, err := readPartial(i, l, from, to)
	if err != nil {
		return err
	}
	defer p.release()
	return p.write()
}

// RemoveBlocks unmaps and frees logical blocks [from, to), over as many handles as it takes. Mu is held. forget says
// that they hold metadata.
func RemoveBlocks(i *volume.Inode, o *volume.Op, from, to uint32, forget bool) error {
	for to > from {
		end := to
		err := o.Do(removeCredits, func() (err error) {
			if end, err = removeSome(i, o, from, to, forget); err != nil || !i.Changed {
				return err
			}
			return i.Store(o)
		})
		if err != nil {
			return err
		}
		to = end
	}
	return nil
}

// removeSome is a step of RemoveBlocks. It returns the new end of what is left to do; the caller stores the inode.
func removeSome(i *volume.Inode, o *volume.Op, from, to uint32, forget bool) (uint32, error) {
	return Tree(i, o).Remove(from, to, removeStep, func(x extent.Extent) error {
		if forget {
			for k := range x.Len {
				o.Handle.Forget(x.Pblk + disk.Block(k))
			}
		}
		return freeBlocks(i, o, x.Pblk, x.Len)
	})
}
