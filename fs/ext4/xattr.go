package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// xattrCredits: the inode, a new block and the old one, each with bitmap and descriptor.
const xattrCredits = 10

// Flags of Setxattr, as in setxattr(2).
const (
	XattrCreate  = 1
	XattrReplace = 2
)

// Getxattr reads an extended attribute. ACLs have the form that setxattr(2) knows, not the one on disk.
func (i *Inode) Getxattr(name string) (_ []byte, err error) {
	defer i.fs.noteTo(&err)
	index, rest, ok := xattr.Split(name)
	if !ok {
		return nil, badXattrName(name)
	}
	i.mu.RLock()
	defer i.mu.RUnlock()
	v, err := i.findXattr(index, rest)
	if err != nil {
		return nil, err
	}
	if isACL(index) {
		a, err := xattr.DecodeACL(v)
		if err != nil {
			return nil, disk.Corrupt(inodeName(i.Ino()), "ACL: %v", err)
		}
		return a.Xattr(), nil
	}
	return v, nil
}

// badXattrName says what is wrong with a name that xattr.Split refused.
func badXattrName(name string) error {
	switch name {
	case "user.", "trusted.", "security.":
		return ErrInvalid
	}
	if len(name) > xattr.MaxName {
		return ErrRange
	}
	return ErrNotSup
}

func isACL(index uint8) bool {
	return index == xattr.IndexPosixACLAccess || index == xattr.IndexPosixACLDefault
}

// findXattr reads one attribute as it lies on disk. mu is held.
func (i *Inode) findXattr(index uint8, name string) ([]byte, error) {
	f, what := i.fs.xattrs, inodeName(i.Ino())
	buf, slot, err := i.slot()
	if err != nil {
		return nil, err
	}
	defer buf.Put()
	buf.RLock()
	a, err := f.FindBody(what, i.d.XattrArea(slot), index, name)
	if err == nil {
		a.Value = append([]byte{}, a.Value...)
	}
	buf.RUnlock()
	if errors.Is(err, xattr.ErrNotExist) && i.d.FileACL != 0 {
		blk, err := i.xattrBlock()
		if err != nil {
			return nil, err
		}
		defer blk.Put()
		blk.RLock()
		defer blk.RUnlock()
		if a, err = f.FindBlock(what, i.d.FileACL, blk.Data(), index, name); err == nil {
			a.Value = append([]byte{}, a.Value...)
		}
		return i.xattrValue(a, err)
	}
	return i.xattrValue(a, err)
}

// xattrValue is the value of an attribute that was looked for: its own bytes, or those of the inode that holds it.
func (i *Inode) xattrValue(a xattr.Attr, err error) ([]byte, error) {
	if errors.Is(err, xattr.ErrNotExist) {
		return nil, ErrNoAttr
	}
	if err != nil || a.ValueInum == 0 {
		return a.Value, err
	}
	return i.eaValue(a)
}

// Listxattr lists the names of the extended attributes.
func (i *Inode) Listxattr() (_ []string, err error) {
	defer i.fs.noteTo(&err)
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.d.ExtraIsize == 0 && i.d.FileACL == 0 {
		return nil, nil
	}
	s, err := i.parseXattrs()
	if err != nil {
		return nil, err
	}
	return s.Names(), nil
}

// Setxattr sets an extended attribute.
func (i *Inode) Setxattr(name string, value []byte, flags int, may ...May) error {
	return i.changeXattr(name, may, func(s *xattr.Set, index uint8, rest string) error {
		value, err := encodeXattr(index, value)
		if err != nil {
			return err
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
		err = i.putXattr(s, xattr.Attr{Index: index, Name: rest, Value: value}, cond)
		return err
	})
}

// Removexattr removes an extended attribute.
func (i *Inode) Removexattr(name string) error {
	return i.changeXattr(name, nil, func(s *xattr.Set, index uint8, rest string) error {
		_, err := s.Delete(index, rest)
		return err
	})
}

func (i *Inode) changeXattr(name string, may []May, f func(s *xattr.Set, index uint8, rest string) error) error {
	index, rest, ok := xattr.Split(name)
	if !ok {
		return badXattrName(name)
	}
	if !i.fs.writable() {
		return ErrReadOnly
	}
	return i.fs.change(may, func(o *op) error {
		o.lock(i)
		if i.d.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
			return ErrPerm
		}
		s, err := i.parseXattrs()
		if err == nil {
			err = f(s, index, rest)
		}
		switch {
		case errors.Is(err, xattr.ErrNotExist):
			return ErrNoAttr
		case errors.Is(err, xattr.ErrExist):
			return ErrExist
		case err != nil:
			return err
		}
		return o.do(xattrCredits+eaCredits(s), func() error { return i.writeXattrs(o, s) })
	})
}

// writeXattrs puts s in place: first the block, which may find no space, then the body.
func (i *Inode) writeXattrs(o *op, s *xattr.Set) error {
	if err := i.makeEAInodes(o, s); err != nil {
		return err
	}
	if err := i.changeEAInodes(o, s); err != nil {
		return err
	}
	if err := i.writeXattrBlock(o, s); err != nil {
		return err
	}
	if err := i.writeXattrBody(o, s); err != nil {
		return err
	}
	i.stamp(disk.TimestampOf(time.Now()))
	i.fs.noteExtAttr(o)
	return i.store(o)
}

func (i *Inode) writeXattrBlock(o *op, s *xattr.Set) error {
	if len(s.Block) == 0 {
		return i.dropXattrBlock(o)
	}
	o.lockShared()
	if i.d.FileACL != 0 {
		blk, err := i.xattrBlock()
		if err != nil {
			return err
		}
		defer blk.Put()
		if xattr.Refcount(blk.Data()) == 1 {
			o.h.Save(blk)
			blk.Lock()
			i.fs.xattrs.EncodeBlock(s, i.d.FileACL, blk.Data())
			o.h.Dirty(blk)
			blk.Unlock()
			return nil
		}
	}
	buf, err := i.allocMeta(o, i.inodeGoal(), o.allocFlags())
	if err != nil {
		return err
	}
	defer buf.Put()
	if err := i.dropXattrBlock(o); err != nil {
		return err
	}
	i.d.FileACL = uint64(buf.Block())
	buf.Lock()
	i.fs.xattrs.EncodeBlock(s, i.d.FileACL, buf.Data())
	buf.SetVerified()
	o.h.Dirty(buf)
	buf.Unlock()
	return nil
}

// dropXattrBlock takes the inode off its attribute block, which others may share.
func (i *Inode) dropXattrBlock(o *op) error {
	if i.d.FileACL == 0 {
		return nil
	}
	b := jbd2.Block(i.d.FileACL)
	blk, err := i.xattrBlock()
	if err != nil {
		return err
	}
	defer blk.Put()
	o.lockShared()
	n := xattr.Refcount(blk.Data())
	if n == 0 {
		return disk.Corrupt(inodeName(i.Ino()), "attribute block %d is used by nobody", b)
	}
	i.d.FileACL = 0
	if n == 1 {
		return i.freeMeta(o, b)
	}
	o.h.Save(blk) // nobody else changes it before the handle ends, see lockShared
	blk.Lock()
	i.fs.xattrs.SetRefcount(uint64(b), blk.Data(), n-1)
	o.h.Dirty(blk)
	blk.Unlock()
	i.addBlocks(-1)
	return nil
}

// freeXattrs lets go of the attributes of an inode that is freed.
func (i *Inode) freeXattrs(o *op) error {
	if err := i.changeEAInodes(o, nil); err != nil {
		return err
	}
	return i.dropXattrBlock(o)
}
