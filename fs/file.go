package fs

import (
	"bytes"
	"context"
	"math"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// The road of file bytes:
//
//	read   the kernel asks for up to 1 MiB (read-ahead: several at once, in parallel)
//	    1  ext4 has the controller fill pinned buffers
//	    2  the reply is written to /dev/fuse from those buffers, then they go back to the pool
//	write  the kernel sends up to 1 MiB (write-back: several at once, in parallel)
//	    1  the request lies in go-fuse's buffer; a caller who may not keep set-ID bits loses them (rawFS.Writev)
//	    2  ext4 copies it once into pinned buffers and hands them to the controller

var (
	_ = (gofs.NodeOpener)((*node)(nil))
	_ = (gofs.NodeReader)((*node)(nil))
	_ = (gofs.NodeWriter)((*node)(nil))
	_ = (gofs.NodeFlusher)((*node)(nil))
	_ = (gofs.NodeFsyncer)((*node)(nil))
	_ = (gofs.NodeAllocater)((*node)(nil))
	_ = (gofs.NodeLseeker)((*node)(nil))
	_ = (gofs.NodeCopyFileRanger)((*node)(nil))
)

// The kernel's pages stay good between opens: nobody else writes the volume.
const openFlags = fuse.FOPEN_KEEP_CACHE

// openFlags are those of a file that is opened with flags.
func (s *Server) openFlags(flags uint32) uint32 {
	if s.opt.StrictAtime && flags&syscall.O_ACCMODE != syscall.O_WRONLY {
		return openFlags | fuse.FOPEN_DIRECT_IO
	}
	return openFlags
}

// Open checks what the kernel cannot know of an ext4 file. There is no handle: what the kernel sends with a request is
// enough.
func (n *node) Open(_ context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if acc := flags & syscall.O_ACCMODE; acc != syscall.O_RDONLY {
		a := n.in.Attr()
		if a.Flags&ext4.FlagImmutable != 0 || a.Flags&ext4.FlagAppend != 0 && flags&syscall.O_APPEND == 0 {
			return nil, 0, syscall.EPERM
		}
	}
	n.opened(flags)
	fl := n.srv.openFlags(flags)
	if flags&syscall.O_DIRECT != 0 && !n.srv.opt.WriteBack {
		// Writers that stay inside the file need not wait for one another. With the write-back cache the kernel may know
		// of a size that ext4 does not know yet, so a direct read that ends early has to go on through the cache, which
		// the kernel sees to where the flag is not set.
		fl |= fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	return nil, fl, 0
}

// pinned is a read's answer in the buffer that the controller filled. go-fuse sends its Slices and then calls Done.
type pinned struct{ data *ext4.Data }

func (p pinned) Size() int                          { return len(p.data.Bytes()) }
func (p pinned) Done()                              { p.data.Release() }
func (p pinned) Slices() ([][]byte, fuse.Status)    { return [][]byte{p.data.Bytes()}, fuse.OK }
func (p pinned) Bytes([]byte) ([]byte, fuse.Status) { return p.data.Bytes(), fuse.OK }

// Read answers with up to len(dest) bytes, fewer at the end of the file.
func (n *node) Read(_ context.Context, _ gofs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n.hasPages() // also if the file was opened for direct I/O: it may be mapped
	data, err := n.in.Read(off, len(dest))
	if err != nil {
		return nil, n.fail("read", err)
	}
	size := len(data.Bytes())
	n.srv.count.reads.Add(1)
	n.srv.count.readBytes.Add(int64(size))
	if size == 0 {
		// go-fuse does not call Done for an answer without bytes.
		data.Release()
		return fuse.ReadResultData(nil), 0
	}
	if n.srv.opt.CopyReads {
		copy(dest, data.Bytes())
		data.Release()
		return fuse.ReadResultData(dest[:size]), 0
	}
	return pinned{data}, 0
}

// Write stores data and says how much of it was stored.
func (n *node) Write(ctx context.Context, _ gofs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	n.hasPages()
	return n.written(n.store(ctx, data, off))
}

// store writes data, and settles it where that is wanted.
func (n *node) store(ctx context.Context, data []byte, off int64) (int, error) {
	defer n.changed(off, off+int64(len(data)))
	may := n.srv.mayOf(ctx)
	done, err := n.reclaimFor(func() (int, error) { return n.in.Write(off, data, may) })
	if err := n.settleBytes(); err != nil {
		return 0, err
	}
	return done, err
}

// writeBack stores dirty pages. When they were written the kernel says by itself, before or after: our own clock must not
// have the last word.
func (n *node) writeBack(data []byte, off int64) (uint32, syscall.Errno) {
	n.hasPages()
	defer n.changed(off, off+int64(len(data)))
	return n.written(n.reclaimFor(func() (int, error) { return n.in.WriteBack(off, data) }))
}

// reclaimFor is reclaim for a write: one that stored something is done.
func (n *node) reclaimFor(write func() (int, error)) (done int, err error) {
	_ = n.srv.reclaim(func() error { // err is the write's, also if it stored something
		if done, err = write(); done > 0 {
			return nil
		}
		return err
	})
	return done, err
}

func (n *node) written(done int, err error) (uint32, syscall.Errno) {
	n.srv.count.writes.Add(1)
	n.srv.count.writtenBytes.Add(int64(done))
	if done > 0 {
		return uint32(done), 0
	}
	return 0, n.fail("write", err)
}

// Flush is close(2) of one descriptor. Nothing waits for it, and ENOSYS tells the kernel not to ask again; it still
// writes back its dirty pages and reports their errors.
func (n *node) Flush(_ context.Context, _ gofs.FileHandle) syscall.Errno { return syscall.ENOSYS }

// fsyncDataOnly is FUSE_FSYNC_FDATASYNC.
const fsyncDataOnly = 1

// Fsync puts a file or a directory on the medium.
func (n *node) Fsync(_ context.Context, _ gofs.FileHandle, flags uint32) syscall.Errno {
	return n.fail("fsync", n.in.Fsync(flags&fsyncDataOnly != 0))
}

// Allocate is fallocate(2) in all its modes.
func (n *node) Allocate(ctx context.Context, _ gofs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if off > math.MaxInt64 || size > math.MaxInt64 || off+size > math.MaxInt64 {
		return syscall.EFBIG
	}
	if err := n.killPrivFor(ctx); err != nil {
		return n.fail("fallocate", err)
	}
	end := int64(off + size)
	if mode&^(unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0 {
		end = math.MaxInt64 // what lies behind moves
	}
	defer n.changed(int64(off), end)
	may := n.srv.mayOf(ctx)
	if err := n.srv.reclaim(func() error { return n.in.Fallocate(mode, int64(off), int64(size), may) }); err != nil {
		return n.fail("fallocate", err)
	}
	return n.fail("fallocate", n.settle())
}

// killPrivFor is killPriv for requests that carry no flag for it: root keeps the bits.
func (n *node) killPrivFor(ctx context.Context) error {
	c := callerOf(ctx)
	if c.Uid == 0 {
		return nil
	}
	return n.killPriv(&c)
}

// Lseek finds data and holes. With the write-back cache the kernel may have data that ext4 does not, so it is made to hand
// it over first; closing a file does that too, so only files open for writing can have any.
func (n *node) Lseek(_ context.Context, _ gofs.FileHandle, off uint64, whence uint32) (uint64, syscall.Errno) {
	if off > math.MaxInt64 {
		return 0, syscall.ENXIO
	}
	if n.srv.opt.WriteBack && n.writers.Load() > 0 && !n.srv.invalidate(n) {
		return n.seekAllData(off, whence)
	}
	pos, err := n.in.Seek(int64(off), int(whence))
	return uint64(pos), n.fail("lseek", err)
}

// seekAllData answers Lseek as file systems without holes do.
func (n *node) seekAllData(off uint64, whence uint32) (uint64, syscall.Errno) {
	size := uint64(n.in.Attr().Size)
	switch {
	case off >= size:
		return 0, syscall.ENXIO
	case whence == unix.SEEK_HOLE:
		return size, 0
	}
	return off, 0
}

// opened and released count who may write the file.
func (n *node) opened(flags uint32) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		n.writers.Add(1)
	}
}

func (n *node) released(flags uint32) {
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		n.writers.Add(-1)
	}
}

// copyChunk is how much of a copy is in memory at a time, and maxCopy how much one request copies; the kernel asks again
// for the rest, so that a signal can stop a long copy.
const (
	copyChunk = 1 << 20
	maxCopy   = 64 << 20
)

// CopyFileRange copies between two files without the bytes passing through the kernel.
func (n *node) CopyFileRange(ctx context.Context, _ gofs.FileHandle, offIn uint64, out *gofs.Inode, _ gofs.FileHandle,
	offOut, size, flags uint64) (uint32, syscall.Errno) {
	if flags != 0 || offIn > math.MaxInt64 || offOut > math.MaxInt64 {
		return 0, syscall.EINVAL
	}
	to := out.Operations().(*node)
	if err := to.killPrivFor(ctx); err != nil {
		return 0, to.fail("copy", err)
	}
	may := n.srv.mayOf(ctx)
	size = min(size, maxCopy)
	defer to.changed(int64(offOut), int64(min(offOut+size, math.MaxInt64)))
	var done uint64
	for done < size {
		copied, err := n.copyOnce(to, int64(offIn+done), int64(offOut+done), int(min(size-done, copyChunk)), may)
		done += uint64(copied)
		if err != nil && done == 0 {
			return 0, n.fail("copy", err)
		}
		if err != nil || copied == 0 {
			break
		}
	}
	if err := to.settle(); err != nil {
		return 0, to.fail("copy", err)
	}
	return uint32(done), 0
}

func (n *node) copyOnce(to *node, offIn, offOut int64, size int, may ext4.May) (int, error) {
	data, err := n.in.Read(offIn, size)
	if err != nil {
		return 0, err
	}
	p := bytes.Clone(data.Bytes())
	data.Release() // before Write, which may wait for such a buffer
	return to.reclaimFor(func() (int, error) { return to.in.Write(offOut, p, may) })
}
