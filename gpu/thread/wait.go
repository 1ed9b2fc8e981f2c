//go:build !race

package thread

import (
	_ "unsafe" // linkname

	"golang.org/x/sys/unix"
)

// The runtime leaves both open to other packages. What is between them is a system call for it that is known to block: the Go processor is given to others at once.

//go:linkname enter runtime.entersyscallblock
func enter()

//go:linkname leave runtime.exitsyscall
func leave()

// call is a system call between the two.
//
//go:nosplit
func call(n, a, b, c, d, e, f uintptr) (uintptr, uintptr, unix.Errno) {
	return unix.RawSyscall6(n, a, b, c, d, e, f)
}
