package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// Open counts a use of the node, and Release ends it.
func (r *rawFS) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, errno := r.srv.use(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	if out.OpenFlags, errno = n.Open(in.Flags); errno != 0 {
		n.done()
	}
	return fuse.Status(errno)
}

func (r *rawFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if n := r.srv.nodes.get(in.NodeId); n != nil {
		n.released(in.Flags)
		n.done()
	}
}

func (r *rawFS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (result fuse.ReadResult, _ fuse.Status) {
	r.noteReply(buf)
	status := r.on(in.NodeId, func(n *node) (errno syscall.Errno) {
		result, errno = n.Read(in, buf)
		return errno
	})
	return result, status
}

// Write is a WRITE that comes by /dev/fuse.
func (r *rawFS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (done uint32, _ fuse.Status) {
	status := r.on(in.NodeId, func(n *node) (errno syscall.Errno) {
		done, errno = n.write(in, ext4.Content{Bytes: data})
		return errno
	})
	return done, status
}

func (r *rawFS) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return r.on(in.NodeId, func(n *node) syscall.Errno { return n.Flush() })
}

func (r *rawFS) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return r.on(in.NodeId, func(n *node) (errno syscall.Errno) {
		out.Offset, errno = n.Lseek(in.Offset, in.Whence)
		return errno
	})
}

func (r *rawFS) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		return n.Allocate(&in.Caller, in.Offset, in.Length, in.Mode)
	})
}

func (r *rawFS) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (done uint32, _ fuse.Status) {
	status := r.on(in.NodeId, func(n *node) syscall.Errno {
		to, errno := r.srv.use(in.NodeIdOut)
		if errno != 0 {
			return errno
		}
		done, errno = n.CopyFileRange(&in.Caller, in.OffIn, to, in.OffOut, in.Len, in.Flags)
		to.done()
		return errno
	})
	return done, status
}
