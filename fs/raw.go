package fs

import (
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// rawFS is a layer between the protocol and go-fuse's node API. It handles the fields of requests that the node API does not pass on.
type rawFS struct {
	fuse.RawFileSystem
	srv *Server
}

// node returns the node of a FUSE node ID.
func (r *rawFS) node(id uint64) *node {
	if id == fuse.FUSE_ROOT_ID {
		return r.srv.root
	}
	return r.srv.nodes.get(id)
}

// Forget subtracts references, in go-fuse's table first. See nodes.
func (r *rawFS) Forget(id, count uint64) {
	r.RawFileSystem.Forget(id, count)
	r.srv.nodes.forget(id, count)
}

// Lookup of "." is for a file of which the kernel has only the node ID, from a file handle.
func (r *rawFS) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if name != "." {
		return r.RawFileSystem.Lookup(cancel, header, name, out)
	}
	n, errno := r.srv.byHandle(header.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	status := r.RawFileSystem.Lookup(cancel, header, name, out)
	if !status.Ok() {
		r.srv.nodes.forget(header.NodeId, 1)
	}
	out.SetAttrTimeout(n.attrTimeout())
	return status
}

// Writev is a WRITE that comes by /dev/fuse.
func (r *rawFS) Writev(_ <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	n := r.node(in.NodeId)
	if n == nil {
		return 0, fuse.Status(syscall.ESTALE)
	}
	if len(data) != 1 {
		data = [][]byte{slices.Concat(data...)}
	}
	done, errno := n.write(in, ext4.Content{Bytes: data[0]})
	return done, fuse.Status(errno)
}

// SetXAttr also clears set-group-ID if it sets an access ACL and the request has the kill-privilege flag.
func (r *rawFS) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if name == ext4.XattrACLAccess && in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		if n := r.node(in.NodeId); n != nil {
			ctx := &fuse.Context{Caller: in.Caller, Cancel: cancel}
			return fuse.Status(n.setxattr(ctx, name, value, in.Flags, sISGID))
		}
	}
	return r.RawFileSystem.SetXAttr(cancel, in, name, value)
}

// masked applies the umask to the mode of a new file. The umask counts only if the parent directory has no default ACL, so the kernel
// leaves it to the file system (FUSE_DONT_MASK). go-fuse does not pass it on.
func (r *rawFS) masked(parent uint64, mode, umask uint32) uint32 {
	if n := r.node(parent); n != nil {
		if def, err := n.defaultACL(); def != nil && err == nil {
			return mode
		}
	}
	return mode &^ (umask & 0777)
}

func (r *rawFS) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	in.Mode = r.masked(in.NodeId, in.Mode, in.Umask)
	return r.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (r *rawFS) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	in.Mode = r.masked(in.NodeId, in.Mode, in.Umask)
	return r.RawFileSystem.Mknod(cancel, in, name, out)
}

func (r *rawFS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	in.Mode = r.masked(in.NodeId, in.Mode, in.Umask)
	return r.RawFileSystem.Create(cancel, in, name, out)
}

func (r *rawFS) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	in.Mode = r.masked(in.NodeId, in.Mode, in.Umask)
	return r.RawFileSystem.Tmpfile(cancel, in, out)
}

// Release counts down the open files that may write.
func (r *rawFS) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	if n := r.node(in.NodeId); n != nil {
		n.released(in.Flags)
	}
	r.RawFileSystem.Release(cancel, in)
}

// OnUnmount is called after the last request.
func (r *rawFS) OnUnmount() {
	r.srv.waitRings()
	r.RawFileSystem.OnUnmount()
	r.srv.background.Wait()
	r.srv.nodes.clear()
	r.srv.root.in.Put()
	close(r.srv.done)
}
