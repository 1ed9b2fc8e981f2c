package fs

import (
	"math"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// pinned is the reply to a read in the buffer that the controller filled. go-fuse sends its Slices and then calls Done.
type pinned struct{ data *ext4.Data }

func (p pinned) Size() int { return len(p.data.Bytes()) }

func (p pinned) Done() { p.data.Release() }

func (p pinned) Slices() ([][]byte, fuse.Status) { return [][]byte{p.data.Bytes()}, fuse.OK }

func (p pinned) Bytes([]byte) ([]byte, fuse.Status) { return p.data.Bytes(), fuse.OK }

// Read replies with up to len(dest) bytes, fewer at the end of the file.
func (n *node) Read(in *fuse.ReadIn, dest []byte) (fuse.ReadResult, syscall.Errno) {
	if n.srv.opt.CopyReads {
		size, errno := n.load(in, ext4.Content{Bytes: dest})
		return fuse.ReadResultData(dest[:size]), errno
	}
	n.reads(in, len(dest))
	data, err := n.in.Read(int64(in.Offset), len(dest), reading(in.Flags))
	if err != nil {
		return nil, n.fail("read", err)
	}
	size := n.haveRead(len(data.Bytes()))
	if size == 0 {
		// go-fuse does not call Done for an empty reply.
		data.Release()
		return fuse.ReadResultData(nil), 0
	}
	return pinned{data}, 0
}

// reading is what a read does for a descriptor with the given flags, those of open(2) and F_SETFL, which the kernel sends with each
// READ and READDIR.
func reading(flags uint32) ext4.Reading {
	if flags&unix.O_NOATIME != 0 {
		return ext4.KeepAtime
	}
	return 0
}

// reads notes the pages that a READ may fill.
func (n *node) reads(in *fuse.ReadIn, bytes int) {
	if cached(in) {
		n.hasPages(bytes)
	}
}

// load reads into c, and returns how many bytes.
func (n *node) load(in *fuse.ReadIn, c ext4.Content) (int, syscall.Errno) {
	n.reads(in, len(c.Bytes))
	size, err := n.in.Load(int64(in.Offset), c, reading(in.Flags))
	if err != nil {
		return 0, n.fail("read", err)
	}
	return n.haveRead(size), 0
}

// haveRead counts a READ of size bytes.
func (n *node) haveRead(size int) int {
	n.srv.count.reads.Add(1)
	n.srv.count.readBytes.Add(int64(size))
	return size
}

// Lseek finds data and holes (SEEK_DATA, SEEK_HOLE). With the write-back cache the kernel may have dirty pages, which it must write back
// first. Closing a file writes them back too, so only files that are open for writing can have any.
func (n *node) Lseek(off uint64, whence uint32) (uint64, syscall.Errno) {
	if off > math.MaxInt64 {
		return 0, syscall.ENXIO
	}
	if n.srv.opt.WriteBack && n.writers.Load() > 0 {
		var gone atomic.Bool
		if !n.srv.pagesGone(func() { gone.Store(n.srv.invalidate(n).Ok()) }) {
			// Where the file ends only the kernel knows. To a program this is a file system that cannot search, and it reads all.
			return 0, syscall.EINVAL
		}
		if !gone.Load() {
			return n.seekAllData(off, whence)
		}
	}
	pos, err := n.in.Seek(int64(off), int(whence))
	return uint64(pos), n.fail("lseek", err)
}

// seekAllData answers Lseek as a file system without holes does.
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
