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

// External is a regular file of the mount that a program has open, reached without the kernel: what fs/share moves
// between files and device memory. Possession of the descriptor was the permission, so it carries how that was opened.
type External struct {
	n        *node       // none of the kernel's, which may forget its own and find another
	in       *ext4.Inode // one reference
	Readable bool
	Writable bool // not for O_APPEND: transfers say where they go
}

// External finds the file of a descriptor that a program has passed: its inode number, its type as stat has it, and how it was opened
// (F_GETFL). Whoever has the descriptor keeps it open meanwhile, and has had the kernel write back what it has of the file.
//
// The daemon itself never has such a descriptor: to close one is to wait for the mount, and a daemon that waits for itself cannot be
// killed.
func (s *Server) External(ino uint64, mode uint32, flags int) (*External, error) {
	if flags&unix.O_PATH != 0 {
		return nil, fmt.Errorf("the descriptor was opened with O_PATH, which gives no permission: open the file for reading: %w", syscall.EBADF)
	}
	if mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("inode %d is no regular file: %w", ino, syscall.EINVAL)
	}
	in := s.nodes.retainInode(ino)
	if in == nil {
		return nil, fmt.Errorf("inode %d is not known to the mount at %q: %w", ino, s.dir, syscall.ESTALE)
	}
	access := flags & unix.O_ACCMODE
	return &External{n: &node{srv: s, in: in}, in: in, Readable: access != unix.O_WRONLY, Writable: access != unix.O_RDONLY && flags&unix.O_APPEND == 0}, nil
}

// ErrElsewhere says that a descriptor is not of a file of the mount.
func (s *Server) ErrElsewhere() error {
	return fmt.Errorf("the file is not on the mount at %q: %w", s.dir, syscall.EXDEV)
}

// retainInode takes a reference on the inode of a node that the kernel knows; nil if it knows none.
func (t *nodes) retainInode(id uint64) *ext4.Inode {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.live[id]; n != nil {
		return n.in.Ref()
	}
	return nil
}

// Close gives the reference back.
func (f *External) Close() { f.in.Put() }

// Ino and Generation name the file: the number alone may be another's later.
func (f *External) Ino() uint32        { return f.in.Ino() }
func (f *External) Generation() uint32 { return f.in.Generation() }

// Size is the file's size in bytes now.
func (f *External) Size() int64 { return f.in.Attr().Size }

// hidden says whether the kernel may have bytes of the file that ext4 does not: while somebody has it open for writing.
func (f *External) hidden() bool {
	if !f.n.srv.opt.WriteBack {
		return false
	}
	n := f.n.srv.nodes.of(f.in)
	return n != nil && n.writers.Load() > 0
}

// Read carries out transfers from the file.
func (f *External) Read(ts []ext4.Transfer) {
	if f.hidden() {
		f.n.srv.invalidate(f.n)
	}
	f.in.ReadInto(ts)
	for i := range ts {
		if ts[i].Err != nil {
			f.n.fail("read into device memory", ts[i].Err)
		}
	}
}

// stranger is a caller who may keep no set-ID bits: of whom writes this way only the user is known.
var stranger = fuse.Caller{Owner: fuse.Owner{Uid: math.MaxUint32, Gid: math.MaxUint32}}

// Write writes n bytes of m from at to the file at off. The kernel forgets what pages it had of the range.
func (f *External) Write(off int64, m ext4.Target, at, n int) (done int, err error) {
	if err := f.n.killPriv(&stranger); err != nil {
		return 0, err
	}
	end := int64(math.MaxInt64)
	if off <= end-int64(n) {
		end = off + int64(n)
	}
	defer f.n.changed(off, end)
	// Before, so that no dirty page is written over what is new; after, so that no page read meanwhile stays.
	f.n.srv.fuse.InodeNotify(f.n.id(), off, int64(n))
	done, err = f.in.WriteFrom(off, m, at, n)
	f.n.srv.fuse.InodeNotify(f.n.id(), off, int64(n))
	if err != nil {
		f.n.fail("write from device memory", err)
	}
	return done, err
}

// Sync makes the file's bytes and what is needed to read them durable.
func (f *External) Sync() error { return f.in.Fsync(true) }

// changed tells whoever wants to know that bytes [off, end) of the file are others now. It comes after the change and
// before anybody is told that it is done.
func (n *node) changed(off, end int64) {
	if tell := n.srv.opt.Changed; tell != nil {
		tell(n.in.Ino(), off, end)
	}
}

// Errno is the errno of an error of an External, or of one that carries its own.
func Errno(err error) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return toErrno(err)
}
