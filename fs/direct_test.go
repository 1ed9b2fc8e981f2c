package fs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// iocb and ioEvent are struct iocb and struct io_event of Linux's include/uapi/linux/aio_abi.h, little-endian.
type iocb struct {
	_           [2]uint64
	opcode      uint16
	_           int16
	fd          uint32
	buf, nbytes uint64
	off         int64
	_           [2]uint64
}

type ioEvent struct {
	_   [2]uint64
	res int64
	_   int64
}

// aioWrite writes b by aio, and waits for its end.
func aioWrite(fd int, b []byte, off int64) error {
	const pwrite = 1 // IOCB_CMD_PWRITE
	var ring uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&ring)), 0); errno != 0 {
		return errno
	}
	defer unix.Syscall(unix.SYS_IO_DESTROY, ring, 0, 0)
	cb := &iocb{opcode: pwrite, fd: uint32(fd), buf: uint64(uintptr(unsafe.Pointer(&b[0]))), nbytes: uint64(len(b)), off: off}
	if _, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, ring, 1, uintptr(unsafe.Pointer(&cb))); errno != 0 {
		return errno
	}
	var e ioEvent
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, ring, 1, 1, uintptr(unsafe.Pointer(&e)), 0, 0)
		if errno == 0 {
			break
		}
		if errno != unix.EINTR {
			return errno
		}
	}
	if e.res != int64(len(b)) {
		return fmt.Errorf("aio: %d of %d bytes", e.res, len(b))
	}
	return nil
}

// TestPagesReadDuringDirectWrite reads a file through the kernel's cache while a direct write waits for the device, and again when
// that has ended.
func TestPagesReadDuringDirectWrite(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		const size = 64 << 10
		path := m.path("file")
		write(t, path, string(bytes.Repeat([]byte{'a'}, size)))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		defer f.Close()
		read := func() ([]byte, error) {
			got := make([]byte, size)
			_, err := f.ReadAt(got, 0)
			return got, err
		}
		for how, put := range map[string]func(fd int, b []byte, off int64) error{
			"aio": aioWrite,
			"pwrite": func(fd int, b []byte, off int64) error {
				_, err := unix.Pwrite(fd, b, off)
				return err
			},
		} {
			for _, c := range []byte("bc") {
				fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
				require.NoError(t, err)
				b := aligned(size)
				copy(b, bytes.Repeat([]byte{c}, size))
				during(t, m.dev, blockdev.Fault{Op: blockdev.OpWrite, Times: 1}, func() error { return put(fd, b, 0) }, func() error {
					_, err := read()
					return err
				})
				require.NoError(t, unix.Close(fd))
				got, err := read()
				require.NoError(t, err)
				require.True(t, bytes.Equal(b, got), "%s: old bytes", how)
			}
		}
	})
}

// TestManyDirectWrites has more direct writes under way than the kernel sends requests at a time, while others read the same
// pages and make them dirty: no request waits for ever, and at the end cache and volume agree.
func TestManyDirectWrites(t *testing.T) {
	modes(t, func(t *testing.T, m *mounted) {
		const part, parts = 256 << 10, 16
		path := m.path("file")
		require.NoError(t, os.WriteFile(path, make([]byte, part*parts), 0o600))
		cached, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer cached.Close()
		direct, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
		require.NoError(t, err)
		defer unix.Close(direct)
		rounds := 3
		if raced {
			rounds = 1
		}
		stop := make(chan struct{})
		var writers, others errgroup.Group
		for w := range 80 {
			writers.Go(func() error {
				b := aligned(part)
				for i := range rounds {
					if err := aioWrite(direct, b, int64((w*7+i*3)%parts*part)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for o := range 4 {
			others.Go(func() error {
				b := make([]byte, part)
				for i := 0; ; i++ {
					select {
					case <-stop:
						return nil
					default:
					}
					var err error
					if off := int64((i*5 + o) % parts * part); o > 0 {
						_, err = cached.ReadAt(b, off)
					} else {
						_, err = cached.WriteAt(b[:100], off)
					}
					unix.Fadvise(int(cached.Fd()), 0, 0, unix.FADV_DONTNEED)
					if err != nil {
						return err
					}
				}
			})
		}
		err = writers.Wait()
		close(stop)
		require.NoError(t, errors.Join(err, others.Wait(), cached.Sync()))
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		unix.Fadvise(int(cached.Fd()), 0, 0, unix.FADV_DONTNEED)
		there, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(kept, there))
	})
}

// TestDirectInTheMiddle: a program makes its descriptor one for direct I/O, by fcntl(2), in the middle of a write to the kernel's cache,
// whose pages stay locked until the request is answered; and the other way round.
func TestDirectInTheMiddle(t *testing.T) {
	m := newMount(t, Options{}) // the write-back cache sends writes of its own descriptor, marked as its
	const size = 8<<20 + 100    // the kernel keeps the last page locked: it is new, and written in part
	b := aligned(size)
	for i := range b {
		b[i] = byte(i >> 12)
	}
	for _, flags := range []int{0, unix.O_DIRECT} {
		path := m.path(fmt.Sprint("file", flags))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|flags, 0o600)
		require.NoError(t, err)
		held, release := m.dev.Hold(blockdev.Fault{Op: blockdev.OpWrite, Times: 1})
		done := make(chan error, 1)
		go func() {
			for off := 0; off < size; {
				n, err := unix.Pwrite(fd, b[off:], int64(off))
				if err != nil {
					done <- err
					return
				}
				off += n
			}
			done <- nil
		}()
		<-held // the first request of the write is under way
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags^unix.O_DIRECT)
		release()
		require.NoError(t, err)
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			require.NoError(t, m.srv.Abort())
			require.FailNow(t, "the write waits for ever")
		}
		require.NoError(t, unix.Close(fd))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(b, got))
	}
}

// TestDirectForgetsMany: a file that was copied as a whole, and is then written directly, costs few notifications. Once programs have read it by the page
// cache again, its pages are worth more of them.
func TestDirectForgetsMany(t *testing.T) {
	m := newMount(t, Options{})
	const size = 16 << 20
	path := m.path("file")
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	n := m.srv.nodes.get(st.Ino)
	b := aligned(4096)
	writes := func() {
		for i := range freeNotices + 1 {
			b[0]++
			_, err := unix.Pwrite(fd, b, int64(i)*4096)
			require.NoError(t, err)
		}
	}
	require.True(t, n.mayHavePages())
	writes()
	require.False(t, n.mayHavePages())
	for range 2 {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, b[0], got[freeNotices*4096])
		require.True(t, n.mayHavePages())
		writes()
		require.True(t, n.mayHavePages(), "pages that are in use are dropped")
		got, err = os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, b[0], got[freeNotices*4096])
	}
}

// TestDirectForgets: direct I/O alone leaves no pages to drop. After many direct writes to a file that was read through the cache before, the kernel
// has dropped all its pages at once, and further ones need no notification, until the file is read through the cache again.
func TestDirectForgets(t *testing.T) {
	m := newMount(t, Options{})
	const size = 16 << 10
	path := m.path("file")
	write(t, path, string(bytes.Repeat([]byte{'a'}, size)))
	cached, err := os.Open(path)
	require.NoError(t, err)
	defer cached.Close()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	n := m.srv.nodes.get(st.Ino)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	b := aligned(4096)
	for i := range 2 * freeNotices {
		b[0] = byte(i)
		_, err := unix.Pwrite(fd, b, int64(i%4)*4096)
		require.NoError(t, err)
	}
	require.False(t, n.mayHavePages())
	for range 3 {
		_, err := unix.Pread(fd, b, 4096)
		require.NoError(t, err)
	}
	require.False(t, n.mayHavePages(), "direct reads fill no pages")
	got := make([]byte, 1)
	for c := range byte(3) {
		_, err = cached.ReadAt(got, 4096)
		require.NoError(t, err)
		require.True(t, n.mayHavePages())
		b[0] = c
		_, err = unix.Pwrite(fd, b, 4096)
		require.NoError(t, err)
		_, err = cached.ReadAt(got, 4096)
		require.NoError(t, err)
		require.Equal(t, c, got[0])
	}
}
