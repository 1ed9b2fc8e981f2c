package attrs

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// xattrCredits is how many blocks a change of attributes dirties at most: the inode, a new block and the old one, each with bitmap
// and descriptor.
const xattrCredits = 10

// Flags of Setxattr, as in setxattr(2).
const (
	XattrCreate  = 1
	XattrReplace = 2
)

// Getxattr reads an extended attribute. ACLs have the form that setxattr(2) knows, not the one on disk.
func Getxattr(i *volume.Inode, name string) (_ []byte, err error) {
	defer i.FS.NoteTo(&err)
	index, rest, ok := xattr.Split(name)
	if !ok {
		return nil, badXattrName(name)
	}
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	v, err := findXattr(i, index, rest)
	if err != nil {
		return nil, err
	}
	if isACL(index) {
		a, err := xattr.DecodeACL(v)
		if err != nil {
			return nil, disk.Corrupt(volume.InodeName(i.Ino()), "ACL: %v", err)
		}
		if a == nil {
			return nil, volume.ErrNoAttr
		}
		return a.Xattr(), nil
	}
	return v, nil
}

// badXattrName says what is wrong with a name that xattr.Split refused.
func badXattrName(name string) error {
	switch name {
	case "user.", "trusted.", "security.":
		return volume.ErrInvalid
	}
	if len(name) > xattr.MaxName {
		return volume.ErrRange
	}
	return volume.ErrNotSup
}

func isACL(index uint8) bool {
	return index == xattr.IndexPosixACLAccess || index == xattr.IndexPosixACLDefault
}

// findXattr reads one attribute as it lies on disk. Mu is held.
func findXattr(i *volume.Inode, index uint8, name string) ([]byte, error) {
	f, what := i.FS.XattrFormat, volume.InodeName(i.Ino())
	buf, slot, err := i.Slot()
	if err != nil {
		return nil, err
	}
	defer buf.Put()
	buf.RLock()
	a, err := f.FindBody(what, i.Disk.XattrArea(slot), index, name)
	if err == nil {
		a.Value = append([]byte{}, a.Value...)
	}
	buf.RUnlock()
	if errors.Is(err, xattr.ErrNotExist) && i.Disk.FileACL != 0 {
		blk, err := i.XattrBlock()
		if err != nil {
			return nil, err
		}
		defer blk.Put()
		blk.RLock()
		defer blk.RUnlock()
		if a, err = f.FindBlock(what, i.Disk.FileACL, blk.Data(), index, name); err == nil {
			a.Value = append([]byte{}, a.Value...)
		}
		return xattrValue(i, a, err)
	}
	return xattrValue(i, a, err)
}

// xattrValue is the value of an attribute that was looked for: its own bytes, or those of the inode that holds it.
func xattrValue(i *volume.Inode, a xattr.Attr, err error) ([]byte, error) {
	if errors.Is(err, xattr.ErrNotExist) {
		return nil, volume.ErrNoAttr
	}
	if err != nil || a.ValueInum == 0 {
		return a.Value, err
	}
	return eaValue(i, a)
}

// Listxattr lists the names of the extended attributes.
func Listxattr(i *volume.Inode) (_ []string, err error) {
	defer i.FS.NoteTo(&err)
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	if i.Disk.ExtraIsize == 0 && i.Disk.FileACL == 0 {
		return nil, nil
	}
	s, err := i.ParseXattrs()
	if err != nil {
		return nil, err
	}
	return s.Names(), nil
}

// Setxattr sets an extended attribute. An ACL without entries removes the one that there is, as the kernel does.
func Setxattr(i *volume.Inode, name string, value []byte, flags int, may ...volume.May) error {
	return changeXattr(i, name, may, func(s *xattr.Set, index uint8, rest string) error {
		value, err := encodeXattr(index, value)
		if err != nil {
			return err
		}
		if isACL(index) && value == nil {
			return removeACL(s, index)
		}
		cond := xattr.Always
		switch flags & (XattrCreate | XattrReplace) {
		case XattrCreate:
			cond = xattr.MustCreate
		case XattrReplace:
			cond = xattr.MustExist
		case XattrCreate | XattrReplace: // cannot be
			if _, err := s.Get(index, rest); err != nil {
				return err
			}
			return xattr.ErrExist
		}
		err = putXattr(i, s, xattr.Attr{Index: index, Name: rest, Value: value}, cond)
		return err
	})
}

// Removexattr removes an extended attribute.
func Removexattr(i *volume.Inode, name string) error {
	return changeXattr(i, name, nil, func(s *xattr.Set, index uint8, rest string) error {
		_, err := s.Delete(index, rest)
		return err
	})
}

func changeXattr(i *volume.Inode, name string, may []volume.May, f func(s *xattr.Set, index uint8, rest string) error) error {
	index, rest, ok := xattr.Split(name)
	if !ok {
		return badXattrName(name)
	}
	if !i.FS.Writable() {
		return volume.ErrReadOnly
	}
	return i.FS.Change(may, func(o *volume.Op) error {
		o.Lock(i)
		if i.Disk.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
			return volume.ErrPerm
		}
		s, err := i.ParseXattrs()
		if err == nil {
			err = f(s, index, rest)
		}
		switch {
		case errors.Is(err, xattr.ErrNotExist):
			return volume.ErrNoAttr
		case errors.Is(err, xattr.ErrExist):
			return volume.ErrExist
		case err != nil:
			return err
		}
		return o.Do(xattrCredits+eaCredits(s), func() error { return writeXattrs(i, o, s) })
	})
}

// writeXattrs puts s in place: first the block, which may find no space, then the body.
func writeXattrs(i *volume.Inode, o *volume.Op, s *xattr.Set) error {
	if err := makeEAInodes(i, o, s); err != nil {
		return err
	}
	if err := changeEAInodes(i, o, s); err != nil {
		return err
	}
	if err := writeXattrBlock(i, o, s); err != nil {
		return err
	}
	if err := i.WriteXattrBody(o, s); err != nil {
		return err
	}
	i.Stamp(disk.TimestampOf(time.Now()))
	i.FS.NoteExtAttr(o)
	return i.Store(o)
}

func writeXattrBlock(i *volume.Inode, o *volume.Op, s *xattr.Set) error {
	if len(s.Block) == 0 {
		return dropXattrBlock(i, o)
	}
	o.LockShared()
	if i.Disk.FileACL != 0 {
		blk, err := i.XattrBlock()
		if err != nil {
			return err
		}
		defer blk.Put()
		if xattr.Refcount(blk.Data()) == 1 {
			o.Handle.Save(blk)
			blk.Lock()
			i.FS.XattrFormat.EncodeBlock(s, i.Disk.FileACL, blk.Data())
			o.Handle.Dirty(blk)
			blk.Unlock()
			return nil
		}
	}
	buf, err := contents.AllocMeta(i, o, contents.InodeGoal(i), o.AllocFlags())
	if err != nil {
		return err
	}
	defer buf.Put()
	if err := dropXattrBlock(i, o); err != nil {
		return err
	}
	i.Disk.FileACL = uint64(buf.Block())
	buf.Lock()
	i.FS.XattrFormat.EncodeBlock(s, i.Disk.FileACL, buf.Data())
	buf.SetVerified()
	o.Handle.Dirty(buf)
	buf.Unlock()
	return nil
}

// dropXattrBlock takes the inode off its attribute block, which others may share.
func dropXattrBlock(i *volume.Inode, o *volume.Op) error {
	if i.Disk.FileACL == 0 {
		return nil
	}
	b := disk.Block(i.Disk.FileACL)
	blk, err := i.XattrBlock()
	if err != nil {
		return err
	}
	defer blk.Put()
	o.LockShared()
	n := xattr.Refcount(blk.Data())
	if n == 0 {
		return disk.Corrupt(volume.InodeName(i.Ino()), "attribute block %d has no references", b)
	}
	i.Disk.FileACL = 0
	if n == 1 {
		return contents.FreeMeta(i, o, b)
	}
	o.Handle.Save(blk) // LockShared keeps others from it until the handle ends
	blk.Lock()
	i.FS.XattrFormat.SetRefcount(uint64(b), blk.Data(), n-1)
	o.Handle.Dirty(blk)
	blk.Unlock()
	contents.AddBlocks(i, -1)
	return nil
}

// FreeXattrs frees the attributes of an inode that is freed.
func FreeXattrs(i *volume.Inode, o *volume.Op) error {
	if err := changeEAInodes(i, o, nil); err != nil {
		return err
	}
	return dropXattrBlock(i, o)
}
