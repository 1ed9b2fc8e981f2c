//go:build !amd64 && !arm64

package thread

import "golang.org/x/sys/unix"

// Self is the number of the thread: a goroutine that is not locked never runs on the thread of one that is.
func Self() uintptr { return uintptr(unix.Gettid()) }
