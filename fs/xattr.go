package fs

import (
	"errors"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// Getxattr reads an attribute. It returns ERANGE and the size if dest is too small, also for a query of the size with an empty dest.
func (n *node) Getxattr(name string, dest []byte) (uint32, syscall.Errno) {
	value, err := n.getxattr(name)
	if (name == ext4.XattrACLAccess || name == ext4.XattrACLDefault) && errors.Is(err, ext4.ErrNotSup) {
		// Any other error would make the kernel refuse the access that it checks.
		err = ext4.ErrNoAttr
	}
	if err != nil {
		return 0, n.fail("getxattr", err)
	}
	if len(value) > len(dest) {
		return uint32(len(value)), syscall.ERANGE
	}
	return uint32(copy(dest, value)), 0
}

func (n *node) getxattr(name string) ([]byte, error) {
	if name == wire.ShareAttr {
		if n.srv.opt.Share == "" {
			return nil, ext4.ErrNoAttr
		}
		return []byte(n.srv.opt.Share), nil
	}
	return n.in.Getxattr(name)
}

// Setxattr stores an attribute. The kernel has checked the permission. If it sets an access ACL it also clears the bits of the mode that
// are in drop.
func (n *node) Setxattr(c *fuse.Caller, name string, value []byte, flags, drop uint32) syscall.Errno {
	what, err, may := "setxattr", error(nil), n.srv.may(c)
	switch name {
	case ext4.XattrACLAccess:
		what, err = "set ACL", n.setAccessACL(value, drop, may)
	case ext4.XattrACLDefault:
		what, err = "set default ACL", n.setDefaultACL(value, may)
	default:
		err = n.srv.reclaim(func() error { return n.in.Setxattr(name, value, int(flags), may) })
	}
	if err == nil {
		n.blocksChanged()
		err = n.syncFile()
	}
	return n.fail(what, err)
}

// blocksChanged makes the kernel read st_blocks again. By itself it reads only the change time again, and with the write-back cache not
// even that.
func (n *node) blocksChanged() {
	if n.srv.opt.WriteBack {
		n.srv.invalidateAttr(n)
	} else {
		n.attrsChanged()
	}
}

// Removexattr removes an attribute. It is no error if an ACL does not exist, because the kernel also sends this request to set an empty
// ACL.
func (n *node) Removexattr(name string) syscall.Errno {
	what, err := "removexattr", error(nil)
	switch name {
	case ext4.XattrACLDefault:
		n.noDefaultACL.Store(false)
		fallthrough
	case ext4.XattrACLAccess:
		what, err = "remove ACL", n.removeACL(name)
	default:
		err = n.in.Removexattr(name)
	}
	if err == nil {
		n.blocksChanged()
		err = n.syncFile()
	}
	return n.fail(what, err)
}

// Listxattr lists the names, each ended by a zero byte. Only root sees the names of trusted attributes (xattr(7)).
func (n *node) Listxattr(c *fuse.Caller, dest []byte) (uint32, syscall.Errno) {
	names, err := n.in.Listxattr()
	if err != nil {
		return 0, n.fail("listxattr", err)
	}
	var list []byte
	for _, name := range names {
		if strings.HasPrefix(name, ext4.XattrTrusted) && c.Uid != 0 {
			continue
		}
		list = append(append(list, name...), 0)
	}
	if len(list) > len(dest) {
		return uint32(len(list)), syscall.ERANGE
	}
	return uint32(copy(dest, list)), 0
}
