package main

import (
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// iocb and ioEvent are linux/aio_abi.h's.
type iocb struct {
	_           uint64
	_           [2]uint32
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

const iocbPwrite = 1

// aioWrite writes b by aio, and waits.
func aioWrite(t *testing.T, fd int, b []byte, off int64) error {
	t.Helper()
	var ring uintptr
	_, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&ring)), 0)
	require.Zero(t, errno)
	defer unix.Syscall(unix.SYS_IO_DESTROY, ring, 0, 0)
	cb := &iocb{opcode: iocbPwrite, fd: uint32(fd), buf: uint64(uintptr(unsafe.Pointer(&b[0]))), nbytes: uint64(len(b)), off: off}
	if _, _, errno = unix.Syscall(unix.SYS_IO_SUBMIT, ring, 1, uintptr(unsafe.Pointer(&cb))); errno != 0 {
		return errno
	}
	var e ioEvent
	_, _, errno = unix.Syscall6(unix.SYS_IO_GETEVENTS, ring, 1, 1, uintptr(unsafe.Pointer(&e)), 0, 0)
	require.Zero(t, errno)
	if e.res < 0 {
		return unix.Errno(-e.res)
	}
	require.EqualValues(t, len(b), e.res)
	return nil
}

// TestDirectFull fills a volume by direct I/O and aio. The kernel would make EIO of a write that ends early.
func TestDirectFull(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 16), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	fd, err := unix.Open(filepath.Join(mnt, "file"), unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT, 0o600)
	require.NoError(t, err)
	b, err := unix.Mmap(-1, 0, 192<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	err = nil
	for off := int64(0); err == nil; off += int64(len(b)) {
		err = aioWrite(t, fd, b, off)
	}
	require.NoError(t, unix.Close(fd))
	require.NoError(t, unix.Munmap(b))
	require.ErrorIs(t, err, unix.ENOSPC)
	p.ok("umount", mnt)
	fsck(t, img)
}
