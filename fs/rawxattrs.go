package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

func (r *rawFS) GetXAttr(_ <-chan struct{}, header *fuse.InHeader, name string, dest []byte) (size uint32, _ fuse.Status) {
	status := r.onFor(header.NodeId, false, func(n *node) (errno syscall.Errno) {
		size, errno = n.Getxattr(name, dest)
		return errno
	})
	return size, status
}

func (r *rawFS) ListXAttr(_ <-chan struct{}, header *fuse.InHeader, dest []byte) (size uint32, _ fuse.Status) {
	status := r.onFor(header.NodeId, false, func(n *node) (errno syscall.Errno) {
		size, errno = n.Listxattr(&header.Caller, dest)
		return errno
	})
	return size, status
}

// SetXAttr also clears set-group-ID if it sets an access ACL and the request has the kill-privilege flag.
func (r *rawFS) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	r.srv.calls(in.Pid)
	var drop uint32
	if name == ext4.XattrACLAccess && in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		drop = sISGID
	}
	return r.on(in.NodeId, func(n *node) syscall.Errno { return n.Setxattr(&in.Caller, name, value, in.Flags, drop) })
}

func (r *rawFS) RemoveXAttr(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	r.srv.calls(header.Pid)
	return r.on(header.NodeId, func(n *node) syscall.Errno { return n.Removexattr(name) })
}
