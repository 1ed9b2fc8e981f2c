package uring

import "github.com/lanefs/lanefs/blockdev/iouring"

// newRing makes a ring for n commands at once; it belongs to the calling thread.
//
// It does without IORING_SETUP_DEFER_TASKRUN. With that, a request which the kernel has just given to a thread that is killed stays with
// the ring until the ring's last descriptor is closed; if another thread of the process waits for that very request, in writeback of
// its own mount, the process never ends, and aborting the connection does not help (Linux 6.18).
func newRing(n int) (*iouring.Ring, error) {
	return iouring.New(iouring.Options{Entries: n, Wide: true, Limit: keepWait, Flags: iouring.SetupSingleIssuer | iouring.SetupCoopTaskrun | iouring.SetupTaskrunFlag})
}
