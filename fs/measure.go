package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/blockdev/latency"
	"github.com/lanefs/lanefs/fs/exchange"
)

// The kinds of requests that are measured, named as in <linux/fuse.h>. FORGET and the like have no answer, and nobody waits for them.
const (
	reqLookup = iota
	reqGetattr
	reqSetattr
	reqReadlink
	reqSymlink
	reqMknod
	reqMkdir
	reqUnlink
	reqRmdir
	reqRename
	reqLink
	reqOpen
	reqRead
	reqWrite
	reqStatfs
	reqFsync
	reqSetxattr
	reqGetxattr
	reqListxattr
	reqRemovexattr
	reqFlush
	reqOpendir
	reqReaddir
	reqCreate
	reqTmpfile
	reqFallocate
	reqLseek
	reqCopyFileRange
	reqIoctl
)

func newRequestTimes() *latency.Layer {
	return latency.NewLayer("fuse", "lookup", "getattr", "setattr", "readlink", "symlink", "mknod", "mkdir", "unlink", "rmdir", "rename", "link",
		"open", "read", "write", "statfs", "fsync", "setxattr", "getxattr", "listxattr", "removexattr", "flush", "opendir", "readdir", "create",
		"tmpfile", "fallocate", "lseek", "copy_file_range", "ioctl")
}

// measuredFS is a rawFS that times what it answers, from when the daemon has a request to when its answer is ready.
type measuredFS struct {
	*rawFS
	times *latency.Layer
}

var _ = (exchange.Data)(measuredFS{})

func (m measuredFS) Lookup(c <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	defer m.times.Start(reqLookup).End()
	return m.rawFS.Lookup(c, in, name, out)
}

func (m measuredFS) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	defer m.times.Start(reqGetattr).End()
	return m.rawFS.GetAttr(c, in, out)
}

func (m measuredFS) Statx(c <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	defer m.times.Start(reqGetattr).End()
	return m.rawFS.Statx(c, in, out)
}

func (m measuredFS) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	defer m.times.Start(reqSetattr).End()
	return m.rawFS.SetAttr(c, in, out)
}

func (m measuredFS) Readlink(c <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	defer m.times.Start(reqReadlink).End()
	return m.rawFS.Readlink(c, in)
}

func (m measuredFS) Symlink(c <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	defer m.times.Start(reqSymlink).End()
	return m.rawFS.Symlink(c, in, target, name, out)
}

func (m measuredFS) Mknod(c <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	defer m.times.Start(reqMknod).End()
	return m.rawFS.Mknod(c, in, name, out)
}

func (m measuredFS) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	defer m.times.Start(reqMkdir).End()
	return m.rawFS.Mkdir(c, in, name, out)
}

func (m measuredFS) Unlink(c <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer m.times.Start(reqUnlink).End()
	return m.rawFS.Unlink(c, in, name)
}

func (m measuredFS) Rmdir(c <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer m.times.Start(reqRmdir).End()
	return m.rawFS.Rmdir(c, in, name)
}

func (m measuredFS) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	defer m.times.Start(reqRename).End()
	return m.rawFS.Rename(c, in, from, to)
}

func (m measuredFS) Link(c <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	defer m.times.Start(reqLink).End()
	return m.rawFS.Link(c, in, name, out)
}

func (m measuredFS) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer m.times.Start(reqOpen).End()
	return m.rawFS.Open(c, in, out)
}

func (m measuredFS) Read(c <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	defer m.times.Start(reqRead).End()
	return m.rawFS.Read(c, in, buf)
}

func (m measuredFS) ReadPayload(in *fuse.ReadIn, p *exchange.Payload) (int, fuse.Status) {
	defer m.times.Start(reqRead).End()
	return m.rawFS.ReadPayload(in, p)
}

func (m measuredFS) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	defer m.times.Start(reqWrite).End()
	return m.rawFS.Write(c, in, data)
}

func (m measuredFS) WritePayload(in *fuse.WriteIn, p *exchange.Payload) (uint32, fuse.Status) {
	defer m.times.Start(reqWrite).End()
	return m.rawFS.WritePayload(in, p)
}

func (m measuredFS) StatFs(c <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	defer m.times.Start(reqStatfs).End()
	return m.rawFS.StatFs(c, in, out)
}

func (m measuredFS) Fsync(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	defer m.times.Start(reqFsync).End()
	return m.rawFS.Fsync(c, in)
}

func (m measuredFS) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	defer m.times.Start(reqFsync).End()
	return m.rawFS.FsyncDir(c, in)
}

func (m measuredFS) SetXAttr(c <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	defer m.times.Start(reqSetxattr).End()
	return m.rawFS.SetXAttr(c, in, name, value)
}

func (m measuredFS) GetXAttr(c <-chan struct{}, in *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	defer m.times.Start(reqGetxattr).End()
	return m.rawFS.GetXAttr(c, in, name, dest)
}

func (m measuredFS) ListXAttr(c <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	defer m.times.Start(reqListxattr).End()
	return m.rawFS.ListXAttr(c, in, dest)
}

func (m measuredFS) RemoveXAttr(c <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	defer m.times.Start(reqRemovexattr).End()
	return m.rawFS.RemoveXAttr(c, in, name)
}

func (m measuredFS) Flush(c <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	defer m.times.Start(reqFlush).End()
	return m.rawFS.Flush(c, in)
}

func (m measuredFS) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	defer m.times.Start(reqOpendir).End()
	return m.rawFS.OpenDir(c, in, out)
}

func (m measuredFS) ReadDir(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer m.times.Start(reqReaddir).End()
	return m.rawFS.ReadDir(c, in, out)
}

func (m measuredFS) ReadDirPlus(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	defer m.times.Start(reqReaddir).End()
	return m.rawFS.ReadDirPlus(c, in, out)
}

func (m measuredFS) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	defer m.times.Start(reqCreate).End()
	return m.rawFS.Create(c, in, name, out)
}

func (m measuredFS) Tmpfile(c <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	defer m.times.Start(reqTmpfile).End()
	return m.rawFS.Tmpfile(c, in, out)
}

func (m measuredFS) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	defer m.times.Start(reqFallocate).End()
	return m.rawFS.Fallocate(c, in)
}

func (m measuredFS) Lseek(c <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	defer m.times.Start(reqLseek).End()
	return m.rawFS.Lseek(c, in, out)
}

func (m measuredFS) CopyFileRange(c <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	defer m.times.Start(reqCopyFileRange).End()
	return m.rawFS.CopyFileRange(c, in)
}

func (m measuredFS) Ioctl(c <-chan struct{}, in *fuse.IoctlIn, arg []byte, out *fuse.IoctlOut, to []byte) fuse.Status {
	defer m.times.Start(reqIoctl).End()
	return m.rawFS.Ioctl(c, in, arg, out, to)
}
