package fs

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4"
)

// POSIX ACLs (acl(5)). With FUSE_POSIX_ACL the kernel enforces and caches them; storing them, inheriting them and
// keeping the mode in step is left to the file system ([fuse]).

// getACL reads one of the two ACLs, nil when there is none or the volume cannot hold one.
func (n *node) getACL(name string) (ext4.ACL, error) {
	value, err := n.in.Getxattr(name)
	if errors.Is(err, ext4.ErrNoAttr) || errors.Is(err, ext4.ErrNotSup) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ext4.ParseACL(value)
}

// parseACL decodes an ACL that setxattr(2) is to set.
func parseACL(value []byte) (ext4.ACL, error) {
	a, err := ext4.ParseACL(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ext4.ErrInvalid, err)
	}
	return a, nil
}

// removeACL removes an ACL that may not be there.
func (n *node) removeACL(name string) error {
	if err := n.in.Removexattr(name); !errors.Is(err, ext4.ErrNoAttr) {
		return err
	}
	return nil
}

// setAccessACL stores an access ACL, sets the permission bits to match, and clears the bits of the mode that are in drop. An ACL
// that says no more than a mode is not stored.
func (n *node) setAccessACL(value []byte, drop uint32, may ext4.May) error {
	a, err := parseACL(value)
	if err != nil {
		return err
	}
	if a == nil {
		return n.removeACL(ext4.XattrACLAccess)
	}
	bits, all := a.Mode()
	if all {
		value = nil
	}
	return n.srv.reclaim(func() error { return n.in.SetACL(value, uint32(bits), drop, may) })
}

// setDefaultACL stores the ACL that new files in this directory inherit.
func (n *node) setDefaultACL(value []byte, may ext4.May) error {
	a, err := parseACL(value)
	if err != nil {
		return err
	}
	n.noDefaultACL.Store(false)
	if a == nil {
		return n.removeACL(ext4.XattrACLDefault)
	}
	return n.in.Setxattr(ext4.XattrACLDefault, value, 0, may)
}

// chmodACL sets the access ACL, if there is one, to match a mode that is about to be set. Mode and ACL change in one transaction.
func (n *node) chmodACL(mode uint32, may ext4.May) error {
	a, err := n.getACL(ext4.XattrACLAccess)
	if a == nil || err != nil {
		return err
	}
	return n.in.SetACL(a.Chmod(uint16(mode)).Xattr(), mode, 0, may)
}

// defaultACL returns the directory's default ACL, nil if there is none. The absence is remembered, because every new file needs to know.
func (n *node) defaultACL() (ext4.ACL, error) {
	if n.noDefaultACL.Load() {
		return nil, nil
	}
	a, err := n.getACL(ext4.XattrACLDefault)
	if a == nil && err == nil {
		// The kernel holds the directory's lock while it creates files and for setxattr, so no ACL was set meanwhile.
		n.noDefaultACL.Store(true)
	}
	return a, err
}

// inherited is what a new file gets from its directory.
type inherited struct {
	mode           uint32
	access, preset ext4.ACL // nil: none
}

// inherit works out the mode and the ACLs of a file about to be made with mode in this directory.
func (n *node) inherit(mode uint32) (inherited, error) {
	def, err := n.defaultACL()
	if def == nil || err != nil {
		return inherited{mode: mode}, err
	}
	access, bits := def.Inherit(uint16(mode))
	i := inherited{mode: uint32(bits), access: access}
	if mode&sIFMT == sIFDIR {
		i.preset = def
	}
	return i, nil
}

// xattrs are the inherited ACLs as attributes that the new file is made with.
func (i inherited) xattrs() (x ext4.Xattrs) {
	if i.access != nil {
		x = append(x, ext4.Xattr{Name: ext4.XattrACLAccess, Value: i.access.Xattr()})
	}
	if i.preset != nil {
		x = append(x, ext4.Xattr{Name: ext4.XattrACLDefault, Value: i.preset.Xattr()})
	}
	return x
}
