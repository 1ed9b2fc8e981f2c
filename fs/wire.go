package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// wire is the layer between the protocol and go-fuse's node API, for what that API does not pass on.
type wire struct {
	fuse.RawFileSystem
	srv *Server
}

// node finds the node of an ID that the kernel sent.
func (w *wire) node(id uint64) *node {
	if id == fuse.FUSE_ROOT_ID {
		return w.srv.root
	}
	return w.srv.nodes.get(id)
}

// Forget takes back references, go-fuse's first: see nodes.
func (w *wire) Forget(id, count uint64) {
	w.RawFileSystem.Forget(id, count)
	w.srv.nodes.forget(id, count)
}

// Lookup of "." asks for a file of which the kernel has the node ID only, from a file handle.
func (w *wire) Lookup(cancel <-chan struct{}, header *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if name != "." {
		return w.RawFileSystem.Lookup(cancel, header, name, out)
	}
	n, errno := w.srv.byHandle(header.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	status := w.RawFileSystem.Lookup(cancel, header, name, out)
	if !status.Ok() {
		w.srv.nodes.forget(header.NodeId, 1)
	}
	out.SetAttrTimeout(n.attrTimeout())
	return status
}

// Writev clears set-ID bits first where the kernel says that this writer may not keep them, and tells what the kernel
// wrote back of its cache, and what goes by it, from what a program wrote there.
func (w *wire) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if n := w.node(in.NodeId); n != nil {
			if err := n.killPriv(&in.Caller); err != nil {
				return 0, fuse.Status(n.fail("write", err))
			}
		}
	}
	if w.srv.opt.WriteBack && in.WriteFlags&fuse.WRITE_CACHE != 0 && len(data) == 1 {
		if n := w.node(in.NodeId); n != nil {
			done, errno := n.writeBack(data[0], int64(in.Offset))
			return done, fuse.Status(errno)
		}
	}
	if in.Flags&syscall.O_DIRECT != 0 && len(data) == 1 {
		if n := w.node(in.NodeId); n != nil {
			done, errno := n.writeDirect(&fuse.Context{Caller: in.Caller, Cancel: cancel}, data[0], int64(in.Offset))
			return done, fuse.Status(errno)
		}
	}
	return w.RawFileSystem.Writev(cancel, in, data)
}

// SetXAttr clears set-group-ID where the kernel says that the one who sets an ACL may not keep it.
func (w *wire) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if name == ext4.XattrACLAccess && in.SetXAttrFlags&fuse.SETXATTR_ACL_KILL_SGID != 0 {
		if n := w.node(in.NodeId); n != nil {
			ctx := &fuse.Context{Caller: in.Caller, Cancel: cancel}
			return fuse.Status(n.setxattr(ctx, name, value, in.Flags, sISGID))
		}
	}
	return w.RawFileSystem.SetXAttr(cancel, in, name, value)
}

// The umask applies only where the directory has no default ACL, so the kernel leaves it to us (FUSE_DONT_MASK), and
// go-fuse passes on no more than the mode.
func (w *wire) masked(parent uint64, mode, umask uint32) uint32 {
	if n := w.node(parent); n != nil {
		if def, err := n.defaultACL(); def != nil && err == nil {
			return mode
		}
	}
	return mode &^ (umask & 0777)
}

func (w *wire) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	in.Mode = w.masked(in.NodeId, in.Mode, in.Umask)
	return w.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (w *wire) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	in.Mode = w.masked(in.NodeId, in.Mode, in.Umask)
	return w.RawFileSystem.Mknod(cancel, in, name, out)
}

func (w *wire) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	in.Mode = w.masked(in.NodeId, in.Mode, in.Umask)
	return w.RawFileSystem.Create(cancel, in, name, out)
}

func (w *wire) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	in.Mode = w.masked(in.NodeId, in.Mode, in.Umask)
	return w.RawFileSystem.Tmpfile(cancel, in, out)
}

// Release counts down who may write the file.
func (w *wire) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	if n := w.node(in.NodeId); n != nil {
		n.released(in.Flags)
	}
	w.RawFileSystem.Release(cancel, in)
}

// OnUnmount comes after the last request.
func (w *wire) OnUnmount() {
	w.RawFileSystem.OnUnmount()
	w.srv.late.Wait()
	w.srv.nodes.clear()
	w.srv.root.in.Put()
	close(w.srv.done)
}
