package media

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl/claim"
)

// Image is an open image file or block device. It is never grown or truncated.
type Image struct {
	path  string
	fd    int
	size  int64 // bytes in whole blocks
	ino   uint64
	dev   uint64
	block bool  // a block device
	inRAM bool  // a file of tmpfs or ramfs
	edge  *edge // of an image in RAM
	claim *claim.Claim
	punch bool // holes can be punched, and read as zeroes
	pages *pages
	rdev  uint64 // of a block device: its number
	depth int    // of a block device's queue; 0: not known
	// discards says that a block device takes BLKDISCARD.
	discards bool
	direct   direct // round the page cache
	log      *slog.Logger

	syncing sync.Mutex // held by the one synchronization that runs; see durable.go
	lost    atomic.Pointer[LostError]
	end     atomic.Int64 // bytes that have been there all the time, size at most
	grown   atomic.Bool  // a block device has become larger, which was logged
	watch   watch        // of a file
	below   *below       // of a loop device; nil: none
}

// Options are of Open.
type Options struct {
	BlockSize int  // bytes, a power of two
	ReadOnly  bool // the image is opened for reading
	// Pinner lets a copy engine read the image's pages in place. nil: View gives nothing.
	Pinner Pinner
	Log    *slog.Logger // must not be nil
}

// Open opens the image file or block device at path and claims it: nothing else of LaneFS, and no other program that asks, can have it
// until Close. The error is a *claim.InUse if something has it now.
func Open(path string, opt Options) (_ *Image, err error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("image %q: %w", path, err)
	}
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if opt.ReadOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC
	}
	var fd int
	opened := false // round the page cache
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		fd, err = unix.Open(path, flags, 0)
	case unix.S_IFBLK:
		fd, opened, err = openDirect(flags, func(flags int) (int, error) { return claim.Open(path, st.Rdev, flags) })
	default:
		return nil, fmt.Errorf("image %q is neither a regular file nor a block device", path)
	}
	if _, taken := claim.IsInUse(err); taken {
		return nil, err
	}
	switch {
	case err == unix.EACCES && !opt.ReadOnly && st.Mode&unix.S_IFMT == unix.S_IFBLK && protectedDevice(path):
		return nil, notWritable(path, unprotect(path, -1, true, err), unix.EROFS)
	case err == unix.EACCES && !opt.ReadOnly:
		return nil, notWritable(path, "change its permissions", err)
	case err == unix.EROFS:
		return nil, notWritable(path, unprotect(path, -1, st.Mode&unix.S_IFMT == unix.S_IFBLK, err), err)
	case err == unix.EPERM && !opt.ReadOnly && st.Mode&unix.S_IFMT == unix.S_IFREG:
		return nil, notWritable(path, unprotect(path, -1, false, err), err)
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
	if taken, err = claim.Take(path, fd, !opt.ReadOnly); err != nil {
		return nil, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("image %q: %w", path, err)
	}
	m := &Image{log: opt.Log, path: path, fd: fd, claim: taken, ino: st.Ino, dev: st.Dev, size: st.Size}
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		if m.size, err = unix.Seek(fd, 0, io.SeekEnd); err != nil {
			return nil, fmt.Errorf("image %q: size: %w", path, err)
		}
		m.block, m.rdev = true, st.Rdev
		if err = m.learn(opt.BlockSize, opened); err != nil {
			return nil, err
		}
		m.below = newBelow(fd, st.Rdev, m.size)
		m.punch = true // the first refusal says otherwise
		// Opening says nothing of a device's own write protection.
		if protected, err := unix.IoctlGetInt(fd, unix.BLKROGET); err == nil && protected != 0 && !opt.ReadOnly {
			return nil, notWritable(path, unprotect(path, fd, true, unix.EROFS), unix.EROFS)
		}
	} else {
		var fs unix.Statfs_t
		if !opt.ReadOnly && sealed(fd) {
			return nil, notWritable(path, unprotect(path, fd, false, unix.EPERM), unix.EPERM)
		}
		m.inRAM = unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC)
	}
	var limit unix.Rlimit
	if !m.block && !opt.ReadOnly && unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur < uint64(m.size) {
		return nil, fmt.Errorf("image %q has %d bytes, and this process may write to the first %d of a file: raise that limit (ulimit -f, or LimitFSIZE of a unit)",
			path, m.size, limit.Cur)
	}
	if !m.block && !opt.ReadOnly {
		// A hole beyond the end changes nothing and tells whether holes can be punched.
		m.punch = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, m.size, 4096) == nil
	}
	switch {
	case m.size == 0 && m.block:
		return nil, noMedium(path, st.Rdev)
	case m.size == 0:
		return nil, fmt.Errorf("image %q is empty; make it the size the disk is to have", path)
	}
	// The bytes after the last whole block are not used, as on the kernel's loop devices: `truncate -s 100MB` leaves 256 bytes.
	if whole := m.size &^ int64(opt.BlockSize-1); whole > 0 {
		m.size = whole
		m.end.Store(whole)
	} else {
		return nil, fmt.Errorf("image %q has %d bytes, less than one block of %d", path, m.size, opt.BlockSize)
	}
	if m.inRAM {
		m.edge = newEdge(fd, m.size)
	}
	if !m.Direct() { // nothing of a block device is in the page cache
		m.pages = newPages(m, opt.Pinner)
	}
	return m, nil
}

// noMedium is the error of a device without bytes.
func noMedium(path string, rdev uint64) error {
	const loops = 7 // the major number of loop devices
	remedy := "put one in, or connect it, first"
	if unix.Major(rdev) == loops {
		remedy = "losetup --list shows its file, losetup " + path + " FILE gives it one"
	}
	return fmt.Errorf("device %q has no medium, or an empty one; %s", path, remedy)
}

func notWritable(path, remedy string, err error) error {
	return fmt.Errorf("image %q cannot be opened for writing (mount and raw take it read-only with -o ro, bench and prove without --destroy; or %s): %w", path, remedy, err)
}

// Path is as it was given to Open, Size the number of bytes in whole blocks.
func (m *Image) Path() string { return m.path }
func (m *Image) Size() int64  { return m.size }

// ID is the file's device and inode number: it stays the same while the file exists.
func (m *Image) ID() (dev, ino uint64) { return m.dev, m.ino }

// Deallocates says whether Zero gives space back, and a range that was given back reads as zeroes.
func (m *Image) Deallocates() bool { return m.punch }

// Read implements Medium.
func (m *Image) Read(b *Buffers, off int64) error {
	if err := m.gone(off, b.n); err != nil {
		return err
	}
	return m.refused(off, b.n, m.move(unix.SYS_PREADV2, b, off, 0))
}

// View implements Medium.
func (m *Image) View(off, n int64, look bool) (*Chunk, []byte) {
	if m.pages == nil || look && m.present(off, n) != nil || m.gone(off, n) != nil {
		return nil, nil
	}
	return m.pages.view(off, n, look)
}

// Missed implements Medium.
func (m *Image) Missed(off, n int64) {
	if m.pages != nil {
		m.pages.missed(off, n)
	}
}

// Allocated is how many bytes of storage the image has: Size, where that is not known.
func (m *Image) Allocated() int64 {
	var st unix.Stat_t
	if unix.Fstat(m.fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return m.size
	}
	return min(st.Blocks*512, m.size)
}

// Close gives the image and its claim back. It does not flush.
func (m *Image) Close() error {
	m.pages.close()
	m.edge.close()
	m.watch.end()
	err := unix.Close(m.fd)
	m.claim.Close()
	return err
}
