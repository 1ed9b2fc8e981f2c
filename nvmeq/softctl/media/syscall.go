package media

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// retry calls f again when a signal interrupts it.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}
