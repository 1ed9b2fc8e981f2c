//go:build !amd64 && !arm64

package thread

import "golang.org/x/sys/unix"

// self is the number of the thread: a goroutine that is not locked never runs on the thread of one that is.
func self() uintptr { return uintptr(unix.Gettid()) }
