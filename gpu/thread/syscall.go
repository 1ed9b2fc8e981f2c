//go:build !race

package thread

import (
	_ "unsafe" // linkname

	"golang.org/x/sys/unix"
)

// The runtime leaves these open to other packages. What is between Enter or Block and Leave is a system call for it, calls Call, and nothing that may grow the stack.

// Enter has the runtime take the Go processor away when it sees that the call takes long.
//
//go:linkname Enter runtime.entersyscall
func Enter()

// Block gives the Go processor to others at once.
//
//go:linkname Block runtime.entersyscallblock
func Block()

// Leave waits for a Go processor.
//
//go:linkname Leave runtime.exitsyscall
func Leave()

// Call is a system call between them.
//
//go:nosplit
func Call(n, a, b, c, d, e, f uintptr) (uintptr, uintptr, unix.Errno) {
	return unix.RawSyscall6(n, a, b, c, d, e, f)
}
