package fs

import (
	"errors"
	"fmt"
	"math"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4"
)

// External is a regular file of the mount that a program has open, accessed without the kernel: fs/share moves bytes between it and
// device memory. The program's open descriptor is the permission, so External records how it was opened.
type External struct {
	n        *node       // not in the table of nodes: the kernel may forget its node and look the file up again
	in       *ext4.Inode // one reference
	how      ext4.Reading
	Readable bool
	Writable bool // false with O_APPEND, because transfers have offsets
}

// External returns the file of a descriptor that a program has passed. ino and mode are st_ino and st_mode of the descriptor, flags its
// F_GETFL. The process that holds the descriptor keeps it open during the call, and has made the kernel write back the file's dirty pages.
// Errors: EBADF for O_PATH, EINVAL if it is no regular file, ESTALE if the mount does not know the inode.
//
// The daemon itself never holds such a descriptor. Closing one waits for the mount, and a daemon that waits for itself cannot be killed.
func (s *Server) External(ino uint64, mode uint32, flags int) (*External, error) {
	if flags&unix.O_PATH != 0 {
		return nil, fmt.Errorf("the descriptor was opened with O_PATH, which gives no permission: open the file for reading: %w", syscall.EBADF)
	}
	if mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("inode %d is no regular file: %w", ino, syscall.EINVAL)
	}
	n, errno := s.use(ino)
	if errno != 0 {
		return nil, fmt.Errorf("inode %d is not known to the mount at %q: %w", ino, s.dir, errno)
	}
	defer n.done()
	in, access := n.in.Ref(), flags&unix.O_ACCMODE
	return &External{n: &node{srv: s, in: in}, in: in, how: reading(uint32(flags)), Readable: access != unix.O_WRONLY, Writable: access != unix.O_RDONLY && flags&unix.O_APPEND == 0}, nil
}

// ErrElsewhere returns the error for a descriptor of a file that is not on this mount (EXDEV).
func (s *Server) ErrElsewhere() error {
	return fmt.Errorf("the file is not on the mount at %q: %w", s.dir, syscall.EXDEV)
}

// Close gives the reference back.
func (f *External) Close() { f.in.Put() }

// Ino and Generation identify the file. The number alone may be reused for another file later.
func (f *External) Ino() uint32        { return f.in.Ino() }
func (f *External) Generation() uint32 { return f.in.Generation() }

// Size is the file's size in bytes now.
func (f *External) Size() int64 { return f.in.Attr().Size }

// hidden reports whether the kernel may have dirty pages of the file: with the write-back cache, while the file is open for writing.
func (f *External) hidden() bool {
	if !f.n.srv.opt.WriteBack {
		return false
	}
	n := f.n.srv.nodes.get(f.n.id())
	return n != nil && n.in == f.in && n.writers.Load() > 0
}

// Read carries out transfers from the file. Each transfer's Done and Err say how it ended.
func (f *External) Read(ts []ext4.Transfer) {
	if f.hidden() {
		f.n.srv.invalidate(f.n)
	}
	f.in.ReadInto(ts, f.how)
	for i := range ts {
		if ts[i].Err != nil {
			f.n.fail("read into device memory", ts[i].Err)
		}
	}
}

// unknownCaller is a caller that may keep no set-ID bits. Of a program that writes through fs/share only the user is known.
var unknownCaller = fuse.Caller{Owner: fuse.Owner{Uid: math.MaxUint32, Gid: math.MaxUint32}}

// errEnded is the error of what was written when the kernel could no longer be told to drop its pages: of an aborted mount it may go on to read them.
var errEnded = fmt.Errorf("the mount has ended: %w", syscall.ESHUTDOWN)

// WriteAll carries out transfers to the file. Each transfer's Done and Err say how it ended. Of those that overlap the later one's bytes stay.
// planned is how many only replaced blocks, all at once.
func (f *External) WriteAll(ts []ext4.Transfer) (planned int) {
	if err := f.n.killPriv(&unknownCaller); err != nil {
		for i := range ts {
			ts[i].Done, ts[i].Err = 0, err
		}
		return 0
	}
	ranges, overlap := rangesOf(ts)
	if overlap {
		for i := range ts {
			planned += f.WriteAll(ts[i : i+1])
		}
		return planned
	}
	// The pages are dropped before the writes, so that no dirty page overwrites the new bytes, and after them, so that no page that was read
	// meanwhile stays.
	f.dropRanges(ranges)
	planned = f.in.WriteAll(ts)
	for i := range ts {
		if errors.Is(ts[i].Err, ext4.ErrNoSpace) {
			f.writeRest(&ts[i])
		}
	}
	err := f.n.syncFile()
	told, st := f.dropRanges(ranges)
	if !told {
		st = f.n.srv.invalidateAttr(f.n) // each notification of a range does that, too
	}
	for _, r := range ranges {
		f.n.changed(r.off, r.end)
	}
	for i := range ts {
		if t := &ts[i]; t.Err == nil && err != nil {
			t.Done, t.Err = 0, err
		}
		if ts[i].Stop != nil && errors.Is(ts[i].Err, syscall.ESHUTDOWN) {
			continue // its caller has stopped it, which is no failure of the file
		}
		if ts[i].Err != nil {
			f.n.fail("write from device memory", ts[i].Err)
		} else if ended(st) {
			ts[i].Done, ts[i].Err = 0, errEnded
		}
	}
	return planned
}

// writeRest is the rest of a write that found the volume full, under reclaim, as storeOrReclaim is it for one by the kernel. Of that a program learns how much was
// written, and writes the rest itself; of this one it learns the error alone.
func (f *External) writeRest(t *ext4.Transfer) {
	_ = f.n.srv.reclaim(func() error {
		rest := [1]ext4.Transfer{{Off: t.Off + int64(t.Done), N: t.N - t.Done, Mem: t.Mem, At: t.At + t.Done}}
		f.in.WriteAll(rest[:])
		t.Done, t.Err = t.Done+rest[0].Done, rest[0].Err
		return t.Err
	})
}

// Sync makes the file's bytes and what is needed to read them durable.
func (f *External) Sync() error { return f.in.Fsync(true) }

// changed reports to Options.Changed that bytes [off, end) of the file have changed. It is called after the change and before the reply
// to the request.
func (n *node) changed(off, end int64) {
	if f := n.srv.opt.Changed; f != nil {
		f(n.in.Ino(), off, end)
	}
}

// Errno returns the errno of err: its own if it wraps a syscall.Errno, else that of the table of errors.
func Errno(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return toErrno(err)
}
