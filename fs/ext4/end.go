package ext4

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// endInode does what is left to do at the last Put of an inode: it frees one without links, and finishes the truncation of
// any other.
func endInode(i *Inode, deleted bool) error {
	if deleted {
		return i.destroy()
	}
	return i.finishTruncate()
}

// destroy frees an inode without links that nobody else holds.
func (i *Inode) destroy() error {
	return i.fs.change(nil, func(o *op) error {
		o.lock(i)
		if i.hasBlocks() {
			if err := o.do(8, func() error { return i.fs.addOrphan(o, i) }); err != nil {
				return err
			}
			if err := i.removeBlocks(o, 0, extent.MaxBlock, !i.d.IsReg()); err != nil {
				return err
			}
		}
		return o.do(16, func() error {
			if err := i.freeXattrs(o); err != nil {
				return err
			}
			if err := i.fs.removeOrphan(o, i); err != nil {
				return err
			}
			i.d.Dtime = uint32(time.Now().Unix())
			i.d.Size = 0
			if err := i.store(o); err != nil {
				return err
			}
			o.forget(i) // before its number can be had by another
			return i.fs.alloc.FreeInode(o.h, i.Ino(), i.d.IsDir())
		})
	})
}
