package attrs

import (
	"errors"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/xattr"
)

// SetACL sets the access ACL, in the form that Setxattr takes, and the permission bits that go with it; nil removes the ACL.
// Of the mode's other bits it clears those in drop. It is one transaction: neither is there without the other.
func SetACL(i *volume.Inode, value []byte, perm, drop uint32, may ...volume.May) (err error) {
	if !i.FS.Writable() {
		return volume.ErrReadOnly
	}
	if value != nil {
		if value, err = encodeXattr(xattr.IndexPosixACLAccess, value); err != nil {
			return err
		}
	}
	return i.FS.Change(may, func(o *volume.Op) error {
		o.Lock(i)
		if i.Disk.Flags&(disk.FlImmutable|disk.FlAppend) != 0 {
			return volume.ErrPerm
		}
		s, err := i.ParseXattrs()
		if err != nil {
			return err
		}
		if value != nil {
			err = putXattr(i, s, xattr.Attr{Index: xattr.IndexPosixACLAccess, Value: value}, xattr.Always)
		} else {
			err = removeACL(s, xattr.IndexPosixACLAccess)
		}
		if err != nil {
			return err
		}
		return o.Do(xattrCredits+eaCredits(s), func() error {
			i.Disk.Mode = i.Disk.Mode&^0o777&^uint16(drop) | uint16(perm&0o777)
			return writeXattrs(i, o, s)
		})
	})
}

// removeACL removes an ACL that may not be there.
func removeACL(s *xattr.Set, index uint8) error {
	if _, err := s.Delete(index, ""); !errors.Is(err, xattr.ErrNotExist) {
		return err
	}
	return nil
}
