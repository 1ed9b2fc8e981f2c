package faultfs

import (
	"context"
	"os"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// handle is an open file.
type handle struct {
	f *os.File
	c *content
}

func (h *handle) request(op Op, off, n int64) *request {
	return &request{op: op, file: h.c.name, off: off, n: n}
}

func (h *handle) Read(_ context.Context, b []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := h.c.fs.admit(h.request(OpRead, off, int64(len(b)))); errno != 0 {
		return nil, errno
	}
	n, err := unix.Pread(int(h.f.Fd()), b, off)
	if err != nil {
		return nil, gofs.ToErrno(err)
	}
	return fuse.ReadResultData(b[:n]), 0
}

func (h *handle) Write(_ context.Context, b []byte, off int64) (uint32, syscall.Errno) {
	r := h.request(OpWrite, off, int64(len(b)))
	errno := h.c.fs.admit(r)
	if errno != 0 {
		b = b[:min(r.rule.Part, int64(len(b)))]
	}
	n, err := h.c.write(b, off)
	if errno == 0 && n == 0 {
		errno = gofs.ToErrno(err)
	}
	if errno != 0 {
		return 0, errno
	}
	return uint32(n), 0
}

func (h *handle) Fsync(context.Context, uint32) syscall.Errno {
	r := h.request(OpFsync, 0, 0)
	errno := h.c.fs.admit(r)
	h.c.synced(errno == 0, r.rule.Drop)
	return errno
}

func (h *handle) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	if errno := h.c.fs.admit(h.request(OpFallocate, int64(off), int64(size))); errno != 0 {
		return errno
	}
	return gofs.ToErrno(h.c.fallocate(mode, int64(off), int64(size)))
}

func (h *handle) Lseek(_ context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	n, err := unix.Seek(int(h.f.Fd()), int64(off), int(whence))
	return uint64(n), gofs.ToErrno(err)
}

func (h *handle) Getattr(_ context.Context, out *fuse.AttrOut) syscall.Errno {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(h.f.Fd()), &st); err != nil {
		return gofs.ToErrno(err)
	}
	out.FromStat(&st)
	return 0
}

func (h *handle) Flush(context.Context) syscall.Errno { return 0 }

func (h *handle) Release(context.Context) syscall.Errno {
	h.c.release()
	return gofs.ToErrno(h.f.Close())
}
