package ext4

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// SetACL sets the access ACL, in the form that Setxattr takes, and the permission bits that go with it; nil removes the ACL.
// Of the mode's other bits those in drop go. It is one transaction: neither is there without the other.
func (i *Inode) SetACL(value []byte, perm, drop uint32, may ...May) (err error) {
	if !i.fs.writable() {
		return ErrReadOnly
	}
	if value != nil {
		if value, err = encodeXattr(xattr.IndexPosixACLAccess, value); err != nil {
			return err
		}
	}
	return i.fs.change(may, func(o *op) error {
		o.lock(i)
		if i.d.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
			return ErrPerm
		}
		s, err := i.parseXattrs()
		if err != nil {
			return err
		}
		if value != nil {
			err = i.putXattr(s, xattr.Attr{Index: xattr.IndexPosixACLAccess, Value: value}, xattr.Always)
		} else if _, err = s.Delete(xattr.IndexPosixACLAccess, ""); errors.Is(err, xattr.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return err
		}
		return o.do(xattrCredits+eaCredits(s), func() error {
			i.d.Mode = i.d.Mode&^0o777&^uint16(drop) | uint16(perm&0o777)
			return i.writeXattrs(o, s)
		})
	})
}
