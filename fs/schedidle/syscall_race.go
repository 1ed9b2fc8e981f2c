//go:build race

package schedidle

import "golang.org/x/sys/unix"

// The race detector's atomic operations need a Go processor. So under it the guard is Go code as any other, and stops with it.

func enter() {}
func leave() {}

func call(n, a, b, c, d, e, f uintptr) (uintptr, uintptr, unix.Errno) {
	return unix.Syscall6(n, a, b, c, d, e, f)
}
