package fs

import (
	"bytes"
	"errors"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lanefs/lanefs/fs/ext4"
)

// write carries out a WRITE, whichever way it came, and returns how many bytes were stored. It clears set-ID bits first if the request has
// the kill-privilege flag.
func (n *node) write(in *fuse.WriteIn, c ext4.Content) (uint32, syscall.Errno) {
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := n.killPriv(&in.Caller); err != nil {
			return 0, n.fail("write", err)
		}
	}
	off := int64(in.Offset)
	n.wroteBack(in)
	if n.srv.opt.WriteBack && in.WriteFlags&fuse.WRITE_CACHE != 0 {
		return n.writeBack(c, off)
	}
	may := n.srv.may(&in.Caller)
	if direct(in) {
		return n.writeDirect(c, off, may)
	}
	n.hasPages(len(c.Bytes))
	return n.written(n.store(c, off, may))
}

// store writes c, and makes it durable if the file is synchronous.
func (n *node) store(c ext4.Content, off int64, may ext4.May) (int, error) {
	defer n.changed(off, off+int64(len(c.Bytes)))
	done, err := n.storeOrReclaim(c, off, may, false)
	if err := n.syncBytes(); err != nil {
		return 0, err
	}
	return done, err
}

// writeBack stores dirty pages of the write-back cache. It leaves the times alone, since the kernel sends them in a SETATTR of its own,
// before or after.
func (n *node) writeBack(c ext4.Content, off int64) (uint32, syscall.Errno) {
	n.hasPages(len(c.Bytes))
	defer n.changed(off, off+int64(len(c.Bytes)))
	if a := n.in.Attr(); a.Flags&ext4.FlagAppend != 0 && off < int64(a.Size) {
		return n.written(n.appendBack(c, off, int(min(int64(len(c.Bytes)), int64(a.Size)-off))))
	}
	return n.written(n.storeOrReclaim(c, off, 0, true))
}

// appendBack is writeBack for an append-only file: pages come whole, and the first have bytes that are there already. What is behind these is appended; if they are
// other bytes than there are, that is an error.
func (n *node) appendBack(c ext4.Content, off int64, there int) (int, error) {
	have := make([]byte, there)
	if _, err := n.in.Load(off, ext4.Content{Bytes: have}); err != nil {
		return 0, err
	}
	var other error
	if !bytes.Equal(have, c.Bytes[:there]) {
		other = ext4.ErrPerm
	}
	done := 0
	var err error
	if there < len(c.Bytes) {
		if done, err = n.storeOrReclaim(ext4.Content{Bytes: c.Bytes[there:]}, off+int64(there), 0, true); done == 0 {
			return 0, err
		}
	}
	if other != nil {
		return 0, other
	}
	return there + done, err
}

// storeOrReclaim is ext4's Store, under reclaim where the volume is full.
func (n *node) storeOrReclaim(c ext4.Content, off int64, may ext4.May, keepTimes bool) (int, error) {
	done, err := n.in.Store(off, c, keepTimes, may)
	if done == 0 && errors.Is(err, ext4.ErrNoSpace) {
		return n.reclaimFor(func() (int, error) { return n.in.Store(off, c, keepTimes, may) })
	}
	return done, err
}

// reclaimFor is reclaim for a write. A write that stored some bytes is not tried again.
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

// Flush is sent at close(2) of a descriptor. There is nothing to do, and ENOSYS makes the kernel send no more of them. The kernel still
// writes back its dirty pages at close(2) and reports their errors.
func (n *node) Flush() syscall.Errno { return syscall.ENOSYS }

// fsyncDataOnly is FUSE_FSYNC_FDATASYNC.
const fsyncDataOnly = 1

// Fsync makes a file or a directory durable.
func (n *node) Fsync(flags uint32) syscall.Errno {
	return n.fail("fsync", n.in.Fsync(flags&fsyncDataOnly != 0))
}

// Allocate is fallocate(2). The kernel sends the modes FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE and FALLOC_FL_ZERO_RANGE only, none of
// which moves bytes behind the range (fuse_file_fallocate in Linux's fs/fuse/file.c).
func (n *node) Allocate(c *fuse.Caller, off, size uint64, mode uint32) syscall.Errno {
	if off > math.MaxInt64 || size > math.MaxInt64 || off+size > math.MaxInt64 {
		return syscall.EFBIG
	}
	if err := n.killPrivFor(c); err != nil {
		return n.fail("fallocate", err)
	}
	defer n.changed(int64(off), int64(off+size))
	may := n.srv.may(c)
	if err := n.srv.reclaim(func() error { return n.in.Fallocate(mode, int64(off), int64(size), may) }); err != nil {
		return n.fail("fallocate", err)
	}
	n.attrsChanged()
	return n.fail("fallocate", n.syncFile())
}

// killPrivFor is killPriv for requests that carry no kill-privilege flag. Root keeps the bits.
func (n *node) killPrivFor(c *fuse.Caller) error {
	if c.Uid == 0 {
		return nil
	}
	return n.killPriv(c)
}
