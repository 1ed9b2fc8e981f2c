package fs

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// A device can be shown as one file, which is mounted over a file: mkfs.ext4, e2fsck, debugfs, dd and fio work on it. It behaves as a block
// device does where that differs from a file: it keeps its size, and O_TRUNC does nothing. Flush is fsync. The kernel caches its pages.

// rawDevice answers the requests of such a mount. All are for its root, which is the file.
type rawDevice struct {
	fuse.RawFileSystem
	srv *Server
	dev blockdev.Device

	// edges is held by writes that begin or end within a block, which is read and written back; shared by the others.
	edges sync.RWMutex
}

// MountRaw shows dev as the file at path and returns when the mount is made. Of opt FSName, ReadOnly, AllowOther and Log are used. The device
// may be closed only after Wait has returned.
func MountRaw(path string, dev blockdev.Device, opt Options) (*Server, error) {
	if err := CheckRawPoint(path); err != nil {
		return nil, err
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{opt: opt, dir: path, nodes: newNodes(), done: make(chan struct{}), errors: errorLog{log: opt.Log}, times: newRequestTimes()}
	s.opt.ReadOnly = opt.ReadOnly || dev.Info().ReadOnly
	if s.opt.ReadOnly {
		s.flags = unix.MS_RDONLY
	}
	o := &fuse.MountOptions{
		Name: subtype, FsName: opt.FSName, Options: []string{"default_permissions"}, DisableXAttrs: true,
		AllowOther: opt.AllowOther || os.Geteuid() == 0, MaxWrite: maxRequest, MaxBackground: maxBackground,
		Logger: log.New(fuseLog{opt.Log}, "", 0), DisableSplice: true,
		ExtraCapabilities: fuse.CAP_ASYNC_DIO | fuse.CAP_DIRECT_IO_ALLOW_MMAP | fuse.CAP_ATOMIC_O_TRUNC,
	}
	if os.Geteuid() == 0 {
		o.DirectMountStrict, o.DirectMountFlags = true, s.flags|unix.MS_NOSUID|unix.MS_NODEV
	} else {
		o.Options = append(o.Options, flagNames(s.flags)...)
	}
	var err error
	raw := &rawDevice{RawFileSystem: fuse.NewDefaultRawFileSystem(), srv: s, dev: dev}
	if s.fuse, err = fuse.NewServer(raw, path, o); err != nil {
		return nil, s.explain(err)
	}
	go s.fuse.Serve()
	if there, err := mountsAt(path); err == nil && len(there) > 0 && Ours(there[len(there)-1]) {
		s.dev = Number(there[len(there)-1])
	}
	return s, nil
}

// CheckRawPoint checks that path is a regular file with nothing mounted on it.
func CheckRawPoint(path string) error {
	err := CheckMountPoint(path)
	fi, statErr := os.Stat(path)
	switch {
	case statErr != nil:
		return fmt.Errorf("%q: %w", path, statErr)
	case fi.IsDir():
		return fmt.Errorf("%q is a directory: a raw device is mounted on a file", path)
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%q is no regular file", path)
	}
	if m, _ := MountedAt(path); m != nil {
		return err
	}
	return nil
}

func (r *rawDevice) String() string { return "raw device" }

// OnUnmount is called after the last request.
func (r *rawDevice) OnUnmount() { close(r.srv.done) }

// fail is the status of an operation.
func (r *rawDevice) fail(op string, err error) fuse.Status {
	switch {
	case err == nil:
		return fuse.OK
	case errors.Is(err, blockdev.ErrReadOnly):
		return fuse.EROFS
	}
	errno := toErrno(err)
	if errno == unix.EIO {
		r.srv.opt.Log.Error("a request to the device failed", "op", op, "error", err)
	}
	return fuse.Status(errno)
}

func (r *rawDevice) attr(out *fuse.AttrOut) fuse.Status {
	size := uint64(r.dev.Info().Size())
	mode := uint32(0o600)
	if r.srv.opt.ReadOnly {
		mode = 0o400
	}
	out.Attr = fuse.Attr{Ino: 1, Size: size, Blocks: size / 512, Mode: unix.S_IFREG | mode, Nlink: 1, Blksize: 4096}
	out.Owner = fuse.Owner{Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	out.SetTimeout(time.Hour)
	return fuse.OK
}

func (r *rawDevice) GetAttr(_ <-chan struct{}, _ *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return r.attr(out)
}

// SetAttr changes nothing. Times may be set, as programs do that write.
func (r *rawDevice) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	switch size, sized := in.GetSize(); {
	case sized && int64(size) != int64(r.dev.Info().Size()):
		return fuse.EINVAL // as ftruncate of a block device
	case in.Valid&(fuse.FATTR_MODE|fuse.FATTR_UID|fuse.FATTR_GID) != 0:
		return fuse.EPERM
	}
	return r.attr(out)
}

func (r *rawDevice) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if r.srv.opt.ReadOnly && in.Flags&unix.O_ACCMODE != unix.O_RDONLY {
		return fuse.EROFS
	}
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

func (r *rawDevice) Release(<-chan struct{}, *fuse.ReleaseIn) {}

func (r *rawDevice) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	i := r.dev.Info()
	out.Bsize, out.Blocks = uint32(i.BlockSize), uint64(i.Blocks)
	return fuse.OK
}

// around gives the blocks that n bytes at off lie in.
func (r *rawDevice) around(off int64, n int) (first blockdev.Bytes, length int) {
	bs := r.dev.Info().BlockSize
	first = blockdev.Bytes(off) / bs * bs
	return first, int((blockdev.Bytes(off)+blockdev.Bytes(n)+bs-1)/bs*bs - first)
}

func (r *rawDevice) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	off, size := int64(in.Offset), int64(r.dev.Info().Size())
	n := int(min(int64(len(buf)), int64(in.Size), max(size-off, 0)))
	if n <= 0 {
		return fuse.ReadResultData(nil), fuse.OK
	}
	first, length := r.around(off, n)
	b, err := r.dev.Alloc(length)
	if err != nil {
		return nil, r.fail("read", err)
	}
	defer b.Release()
	if err := r.dev.Read(first, b.Slice(0, length)); err != nil {
		return nil, r.fail("read", err)
	}
	copy(buf, b.Bytes()[off-int64(first):][:n])
	r.srv.count.reads.Add(1)
	r.srv.count.readBytes.Add(int64(n))
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (r *rawDevice) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	off, size := int64(in.Offset), int64(r.dev.Info().Size())
	n := int(min(int64(len(data)), max(size-off, 0)))
	if n == 0 && len(data) > 0 {
		return 0, fuse.Status(unix.ENOSPC) // as beyond the end of a block device
	}
	first, length := r.around(off, n)
	b, err := r.dev.Alloc(length)
	if err != nil {
		return 0, r.fail("write", err)
	}
	defer b.Release()
	if length != n {
		r.edges.Lock()
		defer r.edges.Unlock()
		if err := r.dev.Read(first, b.Slice(0, length)); err != nil {
			return 0, r.fail("write", err)
		}
	} else {
		r.edges.RLock()
		defer r.edges.RUnlock()
	}
	copy(b.Bytes()[off-int64(first):], data[:n])
	if err := r.dev.Write(first, false, b.Slice(0, length)); err != nil {
		return 0, r.fail("write", err)
	}
	r.srv.count.writes.Add(1)
	r.srv.count.writtenBytes.Add(int64(n))
	return uint32(n), fuse.OK
}

func (r *rawDevice) Fsync(<-chan struct{}, *fuse.FsyncIn) fuse.Status {
	return r.fail("fsync", r.dev.Flush())
}

// Flush is close(2): nothing is to be done.
func (r *rawDevice) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// Fallocate zeroes a range, and gives its space back where the device can do both.
func (r *rawDevice) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	switch in.Mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE:
	default:
		return fuse.Status(unix.EOPNOTSUPP)
	}
	size := uint64(r.dev.Info().Size())
	length := in.Length
	switch { // as of a block device: what begins within it may end behind its end, if it may not become larger
	case in.Offset >= size:
		return fuse.EINVAL
	case length <= size-in.Offset:
	case in.Mode&unix.FALLOC_FL_KEEP_SIZE == 0:
		return fuse.EINVAL
	default:
		length = size - in.Offset
	}
	bs := uint64(r.dev.Info().BlockSize)
	from, to := (in.Offset+bs-1)/bs*bs, (in.Offset+length)/bs*bs
	zero := make([]byte, bs)
	part := func(from, to uint64) fuse.Status { // within a block
		if from >= to {
			return fuse.OK
		}
		_, st := r.Write(cancel, &fuse.WriteIn{Offset: from}, zero[:to-from])
		return st
	}
	if from > to { // the range lies within a block
		return part(in.Offset, in.Offset+length)
	}
	if st := part(in.Offset, from); st != fuse.OK {
		return st
	}
	if st := part(to, in.Offset+length); st != fuse.OK || from == to {
		return st
	}
	r.edges.RLock()
	defer r.edges.RUnlock()
	return r.fail("fallocate", r.dev.WriteZeroes(blockdev.Bytes(from), blockdev.Bytes(to-from)))
}
