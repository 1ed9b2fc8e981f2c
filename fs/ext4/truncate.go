package ext4

import (
	"bytes"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// removeStep is how many extents one handle removes: each can touch a bitmap and a descriptor of its own, and the path.
const (
	removeStep    = 16
	removeCredits = 8 + removeStep*2 + 2*extent.MaxDepth
)

// resize sets the size of a regular file, and has set change other members with it. It reports false if there is nothing to
// do; then set was not called. mu is held.
func (i *Inode) resize(o *op, size int64, set func()) (bool, error) {
	switch {
	case !i.d.IsReg():
		return false, i.notRegular()
	case size < 0:
		return false, ErrInvalid
	case size > i.maxSize():
		return false, ErrTooBig
	case size == int64(i.d.Size) && !i.mappedBehind(size):
		return false, nil
	}
	if i.inline() {
		if done, err := i.resizeInline(o, size, set); done || err != nil {
			return done, err
		}
	}
	if size > int64(i.d.Size) {
		if err := i.cleanTail(o); err != nil {
			return false, err
		}
		return true, o.do(4, func() error {
			i.d.Size = uint64(size)
			i.touch(time.Now())
			set()
			return i.store(o)
		})
	}
	i.dropWindow()
	return true, i.shorten(o, size, set)
}

// shorten makes the file smaller:
//
//  1. the block in which it will end is read, which may fail
//  2. one transaction sets the size, and frees the blocks behind it if they are few. Else, or if the last block has bytes
//     that are to become zero, the inode is an orphan from then on: whoever mounts the volume finishes it
//  3. finishResize
//
// Nothing that can be read is changed before the size is. When step 3 fails, what is past the size is no part of the file: it
// is dealt with before the file grows again, or at the next mount.
func (i *Inode) shorten(o *op, size int64, set func()) error {
	tail, err := i.tailAfter(size)
	if err != nil {
		return err
	}
	defer tail.release()
	first := i.sizeBlocks(size)
	err = o.do(8+removeCredits, func() error {
		i.d.Size = uint64(size)
		i.cleanEnd = tail.clean()
		i.touch(time.Now())
		set()
		end, err := i.removeSome(o, first, extent.MaxBlock, false)
		if err != nil {
			return err
		}
		if end > first || !tail.clean() {
			i.shortens = true
			if err := i.fs.addOrphan(o, i); err != nil {
				return err
			}
		}
		return i.store(o)
	})
	if err != nil || !i.shortens {
		return err
	}
	return i.finishResize(o, tail)
}

// mappedBehind says whether there are blocks behind the first size bytes: a truncate frees them even when the size stays.
func (i *Inode) mappedBehind(size int64) bool {
	if i.inline() {
		return false
	}
	l := i.sizeBlocks(size)
	x, err := i.tree(nil).Map(l, extent.MaxBlock-l)
	return err == nil && (!x.Hole() || x.End() < extent.MaxBlock)
}

// sizeBlocks is how many blocks the first size bytes take.
func (i *Inode) sizeBlocks(size int64) uint32 {
	return i.fs.logicalEnd(size)
}

// finishResize zeroes what follows the size in the last block, frees what lies past it, and takes the inode off the orphans.
// tail is the last block, nil to read it. mu is held.
func (i *Inode) finishResize(o *op, tail *partial) error {
	if tail == nil {
		var err error
		if tail, err = i.tailAfter(int64(i.d.Size)); err != nil {
			return err
		}
		defer tail.release()
	}
	if err := tail.write(); err != nil {
		return err
	}
	i.cleanEnd = true
	if err := i.removeBlocks(o, i.sizeBlocks(int64(i.d.Size)), extent.MaxBlock, false); err != nil {
		return err
	}
	return i.endShorten(o)
}

// endShorten takes an inode off the orphans that has nothing past its size any more. mu is held.
func (i *Inode) endShorten(o *op) error {
	if i.d.LinksCount == 0 {
		i.shortens = false
		return nil // it stays an orphan: it is open, or being freed
	}
	return o.do(6, func() error {
		i.shortens = false
		if err := i.fs.removeOrphan(o, i); err != nil {
			return err
		}
		return i.store(o)
	})
}

// finishTruncate is finishResize for an orphan found at mount.
func (i *Inode) finishTruncate() error {
	return i.fs.change(nil, func(o *op) error {
		o.lock(i)
		if !i.d.IsReg() || i.inline() {
			return i.endShorten(o)
		}
		return i.finishResize(o, nil)
	})
}

// cleanTail makes sure that there is nothing past the size, for the file to grow over it: no blocks of a truncation that
// failed half-way, and zeroes in the last block. They are there unless a power cut undid an append but left its bytes, or
// another driver did not care. mu is held.
func (i *Inode) cleanTail(o *op) error {
	switch {
	case i.inline():
		return nil
	case i.shortens:
		return i.finishResize(o, nil)
	case i.cleanEnd:
		return nil
	}
	tail, err := i.tailAfter(int64(i.d.Size))
	if err == nil {
		err = tail.write()
		tail.release()
	}
	i.cleanEnd = err == nil
	return err
}

// partial is a block of which a part is to become zero.
type partial struct {
	i   *Inode
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
	p.i.fs.stats.dataWritten.Add(int64(p.i.fs.bs))
	return p.i.fs.dev.Write(p.off, false, p.buf.Slice(0, p.i.fs.bs))
}

// tailAfter is the block that holds the byte at off, to become zero from there on. mu is held.
func (i *Inode) tailAfter(off int64) (*partial, error) {
	skip := int(off & int64(i.fs.bs-1))
	if skip == 0 {
		return &partial{}, nil
	}
	return i.partial(i.fs.logical(off), skip, i.fs.bs)
}

// partial reads logical block l, of which bytes [from, to) are to become zero, if it is allocated and written.
func (i *Inode) partial(l uint32, from, to int) (*partial, error) {
	p := &partial{i: i}
	if l >= extent.MaxBlock {
		return p, nil // the size is more than a file can have
	}
	err := i.mapRange(l, l+1, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		buf, err := i.fs.dev.Alloc(i.fs.bs, blockdev.ForBlock)
		if err != nil {
			return err
		}
		p.buf, p.off = buf, blockdev.Bytes(x.Pblk)<<i.fs.bits
		if err := i.fs.dev.Read(p.off, buf.Slice(0, i.fs.bs)); err != nil {
			return err
		}
		i.fs.stats.dataRead.Add(int64(i.fs.bs))
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
func (i *Inode) zeroPart(l uint32, from, to int) error {
	p, err := i.partial(l, from, to)
	if err != nil {
		return err
	}
	defer p.release()
	return p.write()
}

// removeBlocks unmaps and frees logical blocks [from, to), over as many handles as it takes. mu is held. forget says
// that they hold metadata.
func (i *Inode) removeBlocks(o *op, from, to uint32, forget bool) error {
	for to > from {
		end := to
		err := o.do(removeCredits, func() (err error) {
			if end, err = i.removeSome(o, from, to, forget); err != nil || !i.changed {
				return err
			}
			return i.store(o)
		})
		if err != nil {
			return err
		}
		to = end
	}
	return nil
}

// removeSome is a step of removeBlocks. It returns the new end of what is left to do; the caller stores the inode.
func (i *Inode) removeSome(o *op, from, to uint32, forget bool) (uint32, error) {
	return i.tree(o).Remove(from, to, removeStep, func(x extent.Extent) error {
		if forget {
			for k := range x.Len {
				o.h.Forget(x.Pblk + jbd2.Block(k))
			}
		}
		return i.freeBlocks(o, x.Pblk, x.Len)
	})
}
