package fs

import (
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

func (r *rawFS) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n, errno := r.srv.use(in.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	out.Fh = r.dirs.add(n)
	return fuse.OK
}

func (r *rawFS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return r.readDir(in, out, false)
}

func (r *rawFS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	r.srv.calls(in.Pid)
	return r.readDir(in, out, true)
}

func (r *rawFS) readDir(in *fuse.ReadIn, out *fuse.DirEntryList, plus bool) fuse.Status {
	r.noteReply(out.Bytes())
	d := r.dirs.get(in.Fh)
	if d == nil {
		return fuse.EBADF
	}
	return fuse.Status(d.read(in.Offset, reading(in.Flags), out, plus))
}

func (r *rawFS) ReleaseDir(in *fuse.ReleaseIn) { r.dirs.remove(in.Fh) }

func (r *rawFS) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return r.fsync(in) }

func (r *rawFS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status { return r.fsync(in) }

func (r *rawFS) fsync(in *fuse.FsyncIn) fuse.Status {
	return r.on(in.NodeId, func(n *node) syscall.Errno { return n.Fsync(in.FsyncFlags) })
}
