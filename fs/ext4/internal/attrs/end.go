package attrs

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// End does what is left to do at the last Put of an inode: it frees one without links, and finishes the truncation of
// any other.
func End(i *volume.Inode, deleted bool) error {
	if deleted {
		return destroy(i)
	}
	return contents.FinishTruncate(i)
}

// destroy frees an inode without links, of which the caller has the only reference.
func destroy(i *volume.Inode) error {
	return i.FS.Change(nil, func(o *volume.Op) error {
		o.Lock(i)
		if i.HasBlocks() {
			if err := o.Do(8, func() error { return i.FS.AddOrphan(o, i) }); err != nil {
				return err
			}
			if err := contents.RemoveBlocks(i, o, 0, extent.MaxBlock, !i.Disk.IsReg()); err != nil {
				return err
			}
		}
		return o.Do(16, func() error {
			if err := FreeXattrs(i, o); err != nil {
				return err
			}
			if err := i.FS.RemoveOrphan(o, i); err != nil {
				return err
			}
			i.Disk.Dtime = uint32(time.Now().Unix())
			i.Disk.Size = 0
			if err := i.Store(o); err != nil {
				return err
			}
			o.Forget(i) // before its number can be had by another
			return i.FS.Alloc.FreeInode(o.Handle, i.Ino(), i.Disk.IsDir())
		})
	})
}
