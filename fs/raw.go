package fs

import (
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// rawFS takes the protocol's requests and calls the methods of nodes. What is missing here is answered with ENOSYS, and the kernel sends
// it once at most.
type rawFS struct {
	fuse.RawFileSystem
	srv     *Server
	dirs    dirHandles
	replies replies
	forgets forgets
}

func newRawFS(s *Server) *rawFS {
	return &rawFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), srv: s}
}

func (r *rawFS) String() string { return subtype }

// on calls do with the node of a FUSE node ID. After a panic the use does not end, which would need a lock that may be held: the process ends.
func (r *rawFS) on(id uint64, do func(n *node) syscall.Errno) fuse.Status {
	return r.onFor(id, true, do)
}

// onFor is on. For changes see Server.useFor.
func (r *rawFS) onFor(id uint64, changes bool, do func(n *node) syscall.Errno) fuse.Status {
	n, errno := r.srv.useFor(id, changes)
	if errno != 0 {
		return fuse.Status(errno)
	}
	status := fuse.Status(do(n))
	n.done()
	return status
}

// Forget subtracts references.
func (r *rawFS) Forget(id, count uint64) {
	if r.srv.rings.used() != nil {
		r.forgets.gather()
		defer func() { r.forgets.done(time.Since(began)) }()
	}
	r.srv.nodes.forget(id, count)
}

func (r *rawFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno { return n.Getattr(out) })
}

func (r *rawFS) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno { return n.Statx(out) })
}

func (r *rawFS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return r.on(in.NodeId, func(n *node) syscall.Errno { return n.Setattr(&in.Caller, in, out) })
}

func (r *rawFS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return fuse.Status(r.srv.root.Statfs(out))
}

func (r *rawFS) Ioctl(_ <-chan struct{}, in *fuse.IoctlIn, arg []byte, out *fuse.IoctlOut, to []byte) fuse.Status {
	return r.on(in.NodeId, func(n *node) (errno syscall.Errno) {
		out.Result, errno = n.Ioctl(&in.Caller, in.Cmd, arg, to)
		return errno
	})
}

// OnUnmount is called after the last request.
func (r *rawFS) OnUnmount() {
	r.srv.waitRings()
	r.srv.background.Wait()
	r.srv.nodes.clear()
	r.srv.root.in.Put()
	close(r.srv.done)
}
