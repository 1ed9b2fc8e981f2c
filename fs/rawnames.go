package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Lookup of "." and ".." is for a file of which the kernel has only the node ID, from a file handle. A name that does not exist is
// answered with an entry without a node, which the kernel caches.
func (r *rawFS) Lookup(_ <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	r.srv.calls(header.Pid)
	if name == "." {
		return fuse.Status(r.srv.LookupSelf(header.NodeId, out))
	}
	return r.on(header.NodeId, func(n *node) syscall.Errno {
		if name == ".." {
			return n.LookupParent(out)
		}
		errno := n.Lookup(name, out)
		if errno == syscall.ENOENT {
			out.SetEntryTimeout(entryTimeout)
			return 0
		}
		return errno
	})
}

// masked applies the umask to the mode of a new file in n. The umask counts only if the directory has no default ACL, so the kernel
// leaves it to the file system (FUSE_DONT_MASK).
func (n *node) masked(mode, umask uint32) uint32 {
	if def, err := n.defaultACL(); def != nil && err == nil {
		return mode
	}
	return mode &^ (umask & 0777)
}

func (r *rawFS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		return n.Mkdir(&in.Caller, name, n.masked(in.Mode, in.Umask), out)
	})
}

func (r *rawFS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		return n.Mknod(&in.Caller, name, n.masked(in.Mode, in.Umask), in.Rdev, out)
	})
}

func (r *rawFS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		return n.Create(&in.Caller, name, in.Flags, n.masked(in.Mode, in.Umask), out)
	})
}

func (r *rawFS) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		return n.Tmpfile(&in.Caller, in.Flags, n.masked(in.Mode, in.Umask), out)
	})
}

func (r *rawFS) Symlink(_ <-chan struct{}, header *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	r.srv.calls(header.Pid)
	return r.on(header.NodeId, func(n *node) syscall.Errno { return n.Symlink(&header.Caller, target, name, out) })
}

func (r *rawFS) Readlink(_ <-chan struct{}, header *fuse.InHeader) (target []byte, _ fuse.Status) {
	status := r.on(header.NodeId, func(n *node) (errno syscall.Errno) {
		target, errno = n.Readlink()
		return errno
	})
	return target, status
}

func (r *rawFS) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		target, errno := r.srv.use(in.Oldnodeid)
		if errno != 0 {
			return errno
		}
		errno = n.Link(&in.Caller, target, name, out)
		target.done()
		return errno
	})
}

func (r *rawFS) Unlink(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	r.srv.calls(header.Pid)
	return r.on(header.NodeId, func(n *node) syscall.Errno { return n.Unlink(name) })
}

func (r *rawFS) Rmdir(_ <-chan struct{}, header *fuse.InHeader, name string) fuse.Status {
	r.srv.calls(header.Pid)
	return r.on(header.NodeId, func(n *node) syscall.Errno { return n.Rmdir(name) })
}

func (r *rawFS) Rename(_ <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	r.srv.calls(in.Pid)
	return r.on(in.NodeId, func(n *node) syscall.Errno {
		to, errno := r.srv.use(in.Newdir)
		if errno != 0 {
			return errno
		}
		errno = n.Rename(&in.Caller, oldName, to, newName, in.Flags)
		to.done()
		return errno
	})
}
