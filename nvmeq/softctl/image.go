package softctl

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl/claim"
)

// medium is what holds a namespace's blocks. Offsets and lengths are bytes and multiples of the block size.
type medium interface {
	readv(v *vector, off int64) error
	// view is the beginning of a range in memory that a copy engine reads, or nil: see pages.
	view(off, n int64) (*chunk, []byte)
	// writev returns when the data is on the medium if durable, else when reads see it.
	writev(v *vector, off int64, durable bool, arrival uint64) error
	// zero makes a range read as zeroes, giving the space back where it can.
	zero(off, n int64, durable bool, arrival uint64) error
	flush() error
}

// image is an open image file or block device. It is never grown or truncated.
type image struct {
	path  string
	fd    int
	size  int64
	ino   uint64
	dev   uint64
	block bool // a block device
	claim *claim.Claim
	punch bool // holes can be punched, and read as zeroes
	pages *pages
	log   *slog.Logger

	syncing sync.Mutex // held by the one synchronization that runs; see durable.go
	lost    atomic.Pointer[lostError]
	end     atomic.Int64 // bytes that have been there all the time, size at most
}

func openImage(path string, blockSize int, readOnly bool) (_ *image, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("image %q: %w", path, err)
	}
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if readOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC
	}
	var fd int
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, err = unix.Open(path, flags, 0)
	case unix.S_IFBLK:
		fd, err = claim.Open(path, st.Rdev, flags)
	default:
		return nil, fmt.Errorf("image %q is neither a regular file nor a block device", path)
	}
	if _, taken := claim.IsInUse(err); taken {
		return nil, err
	}
	switch {
	case err == unix.EACCES || err == unix.EROFS || err == unix.EPERM:
		return nil, notWritable(path, "change its permissions", err)
	case err != nil:
		return nil, fmt.Errorf("image %q: %w", path, err)
	}
	var taken *claim.Claim
	defer func() {
		if err != nil {
			taken.Close()
			unix.Close(fd)
		}
	}()
	if taken, err = claim.Take(path, fd, !readOnly); err != nil {
		return nil, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("image %q: %w", path, err)
	}
	m := &image{path: path, fd: fd, claim: taken, ino: st.Ino, dev: st.Dev, size: st.Size}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		if m.size, err = unix.Seek(fd, 0, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("image %q: size: %w", path, err)
		}
		m.block = true
		m.punch = true // the first refusal says otherwise
		// Opening says nothing of a device's own write protection.
		if protected, err := unix.IoctlGetInt(fd, unix.BLKROGET); err == nil && protected != 0 && !readOnly {
			return nil, notWritable(path, "lift its write protection with blockdev --setrw", unix.EROFS)
		}
	} else if !readOnly {
		// A hole beyond the end changes nothing and tells whether holes can be punched.
		m.punch = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, m.size, 4096) == nil
	}
	if m.size == 0 {
		return nil, fmt.Errorf("image %q is empty; make it the size the disk is to have", path)
	}
	// What is left over is nobody's, as on the kernel's loop devices: `truncate -s 100MB` leaves 256 bytes.
	if whole := m.size &^ int64(blockSize-1); whole > 0 {
		m.size = whole
		m.end.Store(whole)
	} else {
		return nil, fmt.Errorf("image %q has %d bytes, less than one block of %d", path, m.size, blockSize)
	}
	return m, nil
}

func notWritable(path, remedy string, err error) error {
	return fmt.Errorf("image %q cannot be opened for writing (open it read-only, or %s): %w", path, remedy, err)
}

var errShort = errors.New("the image ends here")

func (m *image) readv(v *vector, off int64) error {
	if err := m.gone(off, v.moves()); err != nil {
		return err
	}
	err := v.each(off, func(iov []unix.Iovec, off int64) (int64, error) {
		return vectored(unix.SYS_PREADV2, m.fd, iov, off, 0)
	})
	return m.refused(off, v.moves(), err)
}

// vectored is one preadv2 or pwritev2 without the allocations of the library's wrappers.
func vectored(trap uintptr, fd int, iov []unix.Iovec, off int64, flags int) (int64, error) {
	for {
		n, _, e := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)), uintptr(off), 0, uintptr(flags))
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int64(n), nil
	}
}

func (m *image) view(off, n int64) (*chunk, []byte) {
	if m.pages == nil || m.present(off, n) != nil {
		return nil, nil
	}
	return m.pages.view(off, n)
}

func (m *image) zero(off, n int64, durable bool, _ uint64) error {
	if err := m.present(off, n); err != nil {
		return err
	}
	err := m.pages.without(off, n, m.zeroRange)
	if err == nil && durable {
		err = m.flush()
	}
	return err
}

func (m *image) zeroRange(off, n int64) error {
	err := error(unix.EOPNOTSUPP)
	if m.punch {
		err = retry(func() error {
			return unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		})
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = retry(func() error {
			return unix.Fallocate(m.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		})
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = m.writeZeroes(off, n)
	}
	return err
}

// writeZeroes is for files and devices that know no other way.
func (m *image) writeZeroes(off, n int64) error {
	z := make([]byte, min(n, 1<<20))
	for n > 0 {
		w, err := unix.Pwrite(m.fd, z[:min(n, int64(len(z)))], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		off, n = off+int64(w), n-int64(w)
	}
	return nil
}

// allocated is how many bytes of storage the image has.
func (m *image) allocated() int64 {
	var st unix.Stat_t
	if unix.Fstat(m.fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return m.size
	}
	return min(st.Blocks*512, m.size)
}

func (m *image) close() error {
	m.pages.close()
	err := unix.Close(m.fd)
	m.claim.Close()
	return err
}

func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
