//go:build race

package thread

import "golang.org/x/sys/unix"

// The race detector's atomic operations need a Go processor. So under it what is between is Go code as any other, each system call an ordinary one.

func Enter() {}
func Block() {}
func Leave() {}

func Call(n, a, b, c, d, e, f uintptr) (uintptr, uintptr, unix.Errno) {
	return unix.Syscall6(n, a, b, c, d, e, f)
}
