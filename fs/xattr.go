package fs

import (
	"context"
	"errors"
	"strings"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/share/wire"
)

var (
	_ = (gofs.NodeGetxattrer)((*node)(nil))
	_ = (gofs.NodeSetxattrer)((*node)(nil))
	_ = (gofs.NodeListxattrer)((*node)(nil))
	_ = (gofs.NodeRemovexattrer)((*node)(nil))
)

// Getxattr reads an attribute. ERANGE with the size means that dest is too small; go-fuse expects the same when it only
// asks for the size.
func (n *node) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	value, err := n.getxattr(name)
	if (name == ext4.XattrACLAccess || name == ext4.XattrACLDefault) && errors.Is(err, ext4.ErrNotSup) {
		// Any other error than "no ACL" would have the kernel refuse the access that it asks for.
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

// Setxattr stores an attribute. Who may set which is the kernel's business.
func (n *node) Setxattr(ctx context.Context, name string, value []byte, flags uint32) syscall.Errno {
	return n.setxattr(ctx, name, value, flags, 0)
}

// setxattr is Setxattr; with an access ACL those bits of the mode go that are in drop.
func (n *node) setxattr(ctx context.Context, name string, value []byte, flags, drop uint32) syscall.Errno {
	what, err, may := "setxattr", error(nil), n.srv.mayOf(ctx)
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
		err = n.settle()
	}
	return n.fail(what, err)
}

// blocksChanged has the kernel ask how much a file takes. By itself it asks again for the change time alone, and with the
// write-back cache not even for that.
func (n *node) blocksChanged() {
	if n.srv.opt.WriteBack {
		n.srv.invalidateAttr(n)
	}
}

// Removexattr removes an attribute. An ACL that is not there is no error: this is also how the kernel sets an empty one.
func (n *node) Removexattr(_ context.Context, name string) syscall.Errno {
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
		err = n.settle()
	}
	return n.fail(what, err)
}

// Listxattr lists the names, each ended by a zero byte. Only root sees the names of trusted attributes (xattr(7)).
func (n *node) Listxattr(ctx context.Context, dest []byte) (uint32, syscall.Errno) {
	names, err := n.in.Listxattr()
	if err != nil {
		return 0, n.fail("listxattr", err)
	}
	caller, ok := fuse.FromContext(ctx)
	root := ok && caller.Uid == 0
	var list []byte
	for _, name := range names {
		if strings.HasPrefix(name, ext4.XattrTrusted) && !root {
			continue
		}
		list = append(append(list, name...), 0)
	}
	if len(list) > len(dest) {
		return uint32(len(list)), syscall.ERANGE
	}
	return uint32(copy(dest, list)), 0
}
