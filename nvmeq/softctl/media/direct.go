package media

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A block device is opened with O_DIRECT: blocks move between the device and the memory of a command, and no page cache is in the way.
// Memory that the device cannot take as it lies goes through a bounce buffer.

// direct is what Linux wants of reads and writes that go round the page cache. The zero value: they do not.
type direct struct {
	sector int64 // offsets and lengths are multiples of a logical block
	memory int64 // addresses of this
}

// logicalBlock is the size of a block device's logical blocks in bytes.
func logicalBlock(fd int) (int64, error) {
	n, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	return int64(n), err
}

// BlockSize is the least block size in bytes with which the image at path can be opened: a block device's logical blocks, 512 for a file and
// for what cannot be asked.
func BlockSize(path string) int {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 512
	}
	n, err := strconv.Atoi(readQueue(st.Rdev, "logical_block_size"))
	if err != nil {
		return 512
	}
	return max(n, 512)
}

// readQueue reads a limit of a block device's request queue, which a partition has from its disk.
func readQueue(dev uint64, name string) string {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(dev), unix.Minor(dev))
	b, err := os.ReadFile(filepath.Join(dir, "queue", name))
	if err != nil {
		if dir, err = filepath.EvalSymlinks(dir); err == nil {
			b, _ = os.ReadFile(filepath.Join(filepath.Dir(dir), "queue", name))
		}
	}
	return strings.TrimSpace(string(b))
}

// openDirect opens a block device by open, round the page cache where the kernel lets it.
func openDirect(flags int, open func(flags int) (int, error)) (fd int, direct bool, err error) {
	if fd, err = open(flags | unix.O_DIRECT); err != unix.EINVAL {
		return fd, err == nil, err
	}
	fd, err = open(flags)
	return fd, false, err
}

// learn asks a block device for its limits.
func (m *Image) learn(blockSize int, opened bool) error {
	sector, err := logicalBlock(m.fd)
	if err != nil {
		return fmt.Errorf("image %q: logical block size: %w", m.path, err)
	}
	if int64(blockSize) < sector {
		return fmt.Errorf("image %q has logical blocks of %d bytes: blocks of %d are too small for it", m.path, sector, blockSize)
	}
	m.discards = readQueue(m.rdev, "discard_max_bytes") != "" && readQueue(m.rdev, "discard_max_bytes") != "0"
	m.depth, _ = strconv.Atoi(readQueue(m.rdev, "nr_requests"))
	if !opened {
		return nil
	}
	m.direct = direct{sector: sector, memory: sector}
	var st unix.Statx_t
	if unix.Statx(m.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st) == nil && st.Mask&unix.STATX_DIOALIGN != 0 && st.Dio_mem_align > 0 {
		m.direct.memory = int64(st.Dio_mem_align)
	}
	return nil
}

// takes says whether the device takes a command's memory as it lies.
func (d direct) takes(b *Buffers) bool {
	for _, v := range b.iov {
		if int64(uintptr(unsafe.Pointer(v.Base)))%d.memory != 0 || int64(v.Len)%d.sector != 0 {
			return false
		}
	}
	return true
}

const bounceSize = 1 << 20

var bounces = sync.Pool{New: func() any { b := alignedBytes(bounceSize); return &b }}

// alignedBytes is memory at a multiple of 4096, which is enough for every device.
func alignedBytes(n int64) []byte {
	const page = 4096
	b := make([]byte, n+page)
	return b[-uintptr(unsafe.Pointer(&b[0]))%page:][:n:n]
}

// move reads or writes all of b by system calls that wait.
func (m *Image) move(trap uintptr, b *Buffers, off int64, flags int) error {
	fits := m.direct.sector == 0 || m.direct.takes(b)
	if fits && len(b.iov) == 1 { // a lone command, as a rule: after a system call a CPU guesses no return right, so each frame above it costs
		if n, err := vectored(trap, m.fd, b.iov, off, flags); n == b.n || err != nil {
			return err
		}
	}
	call := func(iov []unix.Iovec, off int64) (int64, error) { return vectored(trap, m.fd, iov, off, flags) }
	if fits {
		return b.each(off, call) // again what a call moved in part: it is the same bytes
	}
	pooled := bounces.Get().(*[]byte)
	defer bounces.Put(pooled)
	buf := *pooled
	var one Buffers
	for at := int64(0); at < b.n; at += bounceSize {
		part := buf[:min(bounceSize, b.n-at)]
		one.Reset()
		one.Add(part)
		if trap == unix.SYS_PWRITEV2 {
			b.copyOut(part, at)
		}
		if err := one.each(off+at, call); err != nil {
			return err
		}
		if trap == unix.SYS_PREADV2 {
			b.copyIn(part, at)
		}
	}
	return nil
}

// Move reads or writes p by one system call, and says whether that has moved all of it. It is for what is begun alone, and may be done again by Read or Write: what fails is.
func (m *Image) Move(p []byte, off int64, write bool) bool {
	n := int64(len(p))
	if int64(uintptr(unsafe.Pointer(unsafe.SliceData(p))))&(m.direct.memory-1) != 0 || n&(m.direct.sector-1) != 0 || off+n > m.end.Load() { // both are powers of two
		return false
	}
	trap := uintptr(unix.SYS_PREAD64)
	if write {
		trap = unix.SYS_PWRITE64
	}
	moved, _, e := unix.Syscall6(trap, uintptr(m.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(n), uintptr(off), 0, 0)
	return e == 0 && int64(moved) == n
}

// overlaps calls f for the parts of the runs that make up n bytes from at, each with its place in them.
func (b *Buffers) overlaps(at, n int64, f func(run []byte, place int64)) {
	first := int64(0)
	for _, v := range b.iov {
		lo, hi := max(at, first), min(at+n, first+int64(v.Len))
		if lo < hi {
			f(bytesOf(v)[lo-first:hi-first], lo-at)
		}
		first += int64(v.Len)
	}
}

// copyOut copies the bytes from at on into p; copyIn the other way.
func (b *Buffers) copyOut(p []byte, at int64) {
	b.overlaps(at, int64(len(p)), func(run []byte, place int64) { copy(p[place:], run) })
}

func (b *Buffers) copyIn(p []byte, at int64) {
	b.overlaps(at, int64(len(p)), func(run []byte, place int64) { copy(run, p[place:]) })
}

// writeDirect writes to a block device, at once durably if asked: the drive's FUA, or a flush behind it by the kernel.
func (m *Image) writeDirect(b *Buffers, off int64, durable bool) error {
	flags := 0
	if durable {
		flags = unix.RWF_DSYNC
	}
	return m.wrote(off, b.n, durable, m.move(unix.SYS_PWRITEV2, b, off, flags))
}

// wrote is what became of a write to a block device. One that was refused, since a thin device has no room or the device is write-protected, has lost nothing.
func (m *Image) wrote(off, n int64, durable bool, err error) error {
	err = m.refused(off, n, err)
	if !durable {
		return err
	}
	if err != nil && !NoRoom(err) && !Protected(err) {
		m.lost.CompareAndSwap(nil, &LostError{err})
	}
	if lost := m.lost.Load(); lost != nil {
		return lost
	}
	return err
}

// Discard tells the device that a range is not used any more; what it reads as then is the device's affair. A file's range is zeroed.
func (m *Image) Discard(off, n int64) error {
	if !m.block {
		return m.Zero(off, n, false, 0)
	}
	if err := m.present(off, n); err != nil {
		return err
	}
	part := [2]uint64{uint64(off), uint64(n)}
	return m.refused(off, n, retry(func() error {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(m.fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&part))); e != 0 {
			return e
		}
		return nil
	}))
}

// Discards says whether Discard has a use.
func (m *Image) Discards() bool { return m.block && m.discards || !m.block && m.punch }

// DiscardsToZero says whether what was discarded reads as zeroes.
func (m *Image) DiscardsToZero() bool { return !m.block && m.punch }

// Direct says whether reads and writes go round the page cache.
func (m *Image) Direct() bool { return m.direct.sector > 0 }

// Depth is how many requests the device's queue takes; 0: not known.
func (m *Image) Depth() int { return m.depth }
