// Package nap is for loops that poll: short sleeps, and how long they have waited. On a machine with little to do time.Sleep takes a millisecond for whatever is less,
// since Go's scheduler waits in epoll_wait, which counts in milliseconds.
package nap

import (
	"time"

	"golang.org/x/sys/unix"
)

// For sleeps for d, less than a second, and some 60 µs more, which Linux adds to let wake-ups coincide. It holds the thread.
func For(d time.Duration) {
	t := unix.Timespec{Nsec: int64(d)}
	_ = unix.Nanosleep(&t, nil) // a signal ends it early; the caller looks again anyway
}
