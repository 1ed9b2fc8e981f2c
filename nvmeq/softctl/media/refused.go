package media

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Writes that are refused before anything of them is accepted: what was written before is still there, and the medium has not failed.

// NoRoom says that there was no room for a write: on the file system that holds the image, in its owner's quota, or in the size of a file to which this
// process may write (RLIMIT_FSIZE; Go's runtime outlives the SIGXFSZ that comes with it).
func NoRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// Protected says that a write was refused by write protection: of a block device (EPERM), of a file system (EROFS), or of a file, by its
// attributes or seals (EPERM).
func Protected(err error) bool { return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM) }

// Unprotect says what lifts the write protection that err tells of.
func (m *Image) Unprotect(err error) string { return unprotect(m.path, m.fd, m.block, err) }

// Flags of a file as chattr sets them (FS_IOC_GETFLAGS).
const (
	flagImmutable  = 0x10
	flagAppendOnly = 0x20
)

// unprotect is Unprotect of the file or block device at path. fd may be open for reading; -1: it is not open.
func unprotect(path string, fd int, block bool, err error) string {
	switch {
	case block:
		return fmt.Sprintf("lift its write protection with blockdev --setrw %s", path)
	case errors.Is(err, unix.EROFS):
		return "make its file system writable with mount -o remount,rw"
	}
	if fd < 0 {
		var oerr error
		if fd, oerr = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); oerr == nil {
			defer unix.Close(fd)
		}
	}
	if sealed(fd) {
		return "copy it to a file that is not sealed (fcntl F_SEAL_WRITE is for good)"
	}
	if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil && flags&flagAppendOnly == 0 && flags&flagImmutable != 0 {
		return fmt.Sprintf("take its attribute i away with chattr -i %s", path)
	}
	return fmt.Sprintf("take its attributes i and a away with chattr -ia %s", path)
}

// sealed says that a memfd is sealed against writes.
func sealed(fd int) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) != 0
}

// protectedDevice says that the block device at path refuses writes.
func protectedDevice(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	protected, err := unix.IoctlGetInt(fd, unix.BLKROGET)
	return err == nil && protected != 0
}
