package ext4

import (
	"bytes"
	"errors"
	"time"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// removeStep is how many extents one handle removes: each can touch a bitmap and a descriptor of its own, and the path.
const (
	removeStep    = 16
	removeCredits = 8 + removeStep*2 + 2*extent.MaxDepth
)

// resize sets the size of a regular file. mu is held.
func (i *Inode) resize(size int64) error {
	switch {
	case !i.d.IsReg():
		return i.notRegular()
	case size < 0:
		return ErrInvalid
	case size > i.maxSize():
		return ErrTooBig
	case size == int64(i.d.Size) && !i.mappedBehind(size):
		return nil
	}
	if i.inline() {
		if done, err := i.resizeInline(size); done || err != nil {
			return err
		}
	}
	if size > int64(i.d.Size) {
		if err := i.cleanTail(); err != nil {
			return err
		}
		return i.fs.do(4, func(h *jbd2.Handle) error {
			i.d.Size = uint64(size)
			i.touch(time.Now())
			return i.store(h)
		})
	}
	i.dropWindow()
	// The rest of the last block becomes zero before the size says so: growing again must not show it.
	if err := i.zeroTail(size); err != nil {
		return err
	}
	// Most files need one transaction. Others are orphans until they are done.
	first, end := i.sizeBlocks(size), uint32(0)
	err := i.fs.do(8+removeCredits, func(h *jbd2.Handle) (err error) {
		i.d.Size = uint64(size)
		i.touch(time.Now())
		if end, err = i.removeSome(h, first, extent.MaxBlock, false); err != nil || end > first {
			err = errors.Join(err, i.fs.addOrphan(h, i))
		}
		return errors.Join(err, i.store(h))
	})
	if err != nil || end <= first {
		return err
	}
	return i.finishResize()
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
	return uint32((size + int64(i.fs.bs) - 1) >> i.fs.bits)
}

// finishResize frees what lies past the size, and takes the inode off the orphans. mu is held.
func (i *Inode) finishResize() error {
	if err := i.removeBlocks(i.sizeBlocks(int64(i.d.Size)), extent.MaxBlock, false); err != nil {
		return err
	}
	if i.d.LinksCount == 0 {
		return nil // it stays an orphan: it is open, or being freed
	}
	return i.fs.do(6, func(h *jbd2.Handle) error {
		if err := i.fs.removeOrphan(h, i); err != nil {
			return err
		}
		return i.store(h)
	})
}

// finishTruncate is finishResize for an orphan found at mount.
func (i *Inode) finishTruncate() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.d.IsReg() || i.inline() {
		return i.fs.do(6, func(h *jbd2.Handle) error {
			return errors.Join(i.fs.removeOrphan(h, i), i.store(h))
		})
	}
	if err := i.zeroTail(int64(i.d.Size)); err != nil {
		return err
	}
	return i.finishResize()
}

// zeroTail zeroes the block that holds the byte at off from there on, if it is allocated. mu is held.
func (i *Inode) zeroTail(off int64) error {
	skip := int(off & int64(i.fs.bs-1))
	if skip == 0 {
		return nil
	}
	return i.zeroPart(uint32(off>>i.fs.bits), skip, i.fs.bs)
}

// cleanTail zeroes what lies past the size in the last block, for the file to grow over it. It is zero unless a power cut
// undid an append but left its bytes there, or another driver did not care. mu is held.
func (i *Inode) cleanTail() error {
	if i.cleanEnd || i.inline() {
		return nil
	}
	err := i.zeroTail(int64(i.d.Size))
	i.cleanEnd = err == nil
	return err
}

// zeroPart zeroes bytes [from, to) of logical block l, if it is allocated and written.
func (i *Inode) zeroPart(l uint32, from, to int) error {
	return i.mapRange(l, l+1, func(x extent.Extent) error {
		if x.Hole() || x.Unwritten {
			return nil
		}
		buf, err := i.fs.dev.Alloc(i.fs.bs)
		if err != nil {
			return err
		}
		defer buf.Release()
		s, off := buf.Slice(0, i.fs.bs), blockdev.Bytes(x.Pblk)<<i.fs.bits
		if err := i.fs.dev.Read(off, s); err != nil {
			return err
		}
		i.fs.stats.dataRead.Add(int64(i.fs.bs))
		part := s.Bytes()[from:to]
		if bytes.Count(part, []byte{0}) == len(part) {
			return nil
		}
		clear(part)
		i.fs.stats.dataWritten.Add(int64(i.fs.bs))
		return i.fs.dev.Write(off, false, s)
	})
}

// removeBlocks unmaps and frees logical blocks [from, to), over as many handles as it takes. mu is held. forget says
// that they hold metadata.
func (i *Inode) removeBlocks(from, to uint32, forget bool) error {
	for to > from {
		err := i.fs.do(removeCredits, func(h *jbd2.Handle) (err error) {
			to, err = i.removeSome(h, from, to, forget)
			if i.changed {
				err = errors.Join(err, i.store(h))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// removeSome is a step of removeBlocks. It returns the new end of what is left to do; the caller stores the inode.
func (i *Inode) removeSome(h *jbd2.Handle, from, to uint32, forget bool) (uint32, error) {
	return i.tree(h).Remove(from, to, removeStep, func(x extent.Extent) error {
		if forget {
			for k := range x.Len {
				h.Forget(x.Pblk + jbd2.Block(k))
			}
		}
		return i.freeBlocks(h, x.Pblk, x.Len)
	})
}

// destroy frees an inode without links that nobody else holds.
func (i *Inode) destroy() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.hasBlocks() {
		if err := i.fs.do(8, func(h *jbd2.Handle) error { return i.fs.addOrphan(h, i) }); err != nil {
			return err
		}
		if err := i.removeBlocks(0, extent.MaxBlock, !i.d.IsReg()); err != nil {
			return err
		}
	}
	isDir := i.d.IsDir()
	defer i.putReleased()
	return i.fs.do(16, func(h *jbd2.Handle) error {
		if err := i.freeXattrs(h); err != nil {
			return err
		}
		if err := i.fs.removeOrphan(h, i); err != nil {
			return err
		}
		i.d.Dtime = uint32(time.Now().Unix())
		i.d.Size = 0
		if err := i.store(h); err != nil {
			return err
		}
		t := &i.fs.inodes
		t.mu.Lock()
		delete(t.m, i.ino)
		i.dead = true
		t.mu.Unlock()
		return i.fs.alloc.FreeInode(h, i.ino, isDir)
	})
}

// hasBlocks says whether the inode's i_block maps blocks.
func (i *Inode) hasBlocks() bool {
	if i.inline() || i.fastSymlink() {
		return false
	}
	return i.d.IsReg() || i.d.IsDir() || i.d.IsLink()
}

// fastSymlink says whether the inode is a symbolic link whose target is in i_block: one without blocks of its own. Its
// length does not tell, for links of old were given a block whatever their length.
func (i *Inode) fastSymlink() bool {
	if i.fs.sb.FeatureIncompat.Has(disk.IncompatEAInode) && i.d.IsLink() && !i.inline() {
		// i_blocks counts blocks of attributes as well; such volumes are new enough for the length to tell.
		return i.d.Flags&disk.FlExtents == 0 && i.d.Size < disk.InodeBlockSize
	}
	return i.d.IsLink() && !i.inline() && i.noBlocks()
}
