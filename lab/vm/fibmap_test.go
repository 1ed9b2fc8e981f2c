package vm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fibmap returns the block of the medium that holds a block of a file (FIBMAP, linux/fs.h).
func fibmap(f *os.File, block int32) (int32, error) {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 1, uintptr(unsafe.Pointer(&block))); errno != 0 {
		return 0, errno
	}
	return block, nil
}
