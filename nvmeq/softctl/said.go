package softctl

import (
	"sync"
	"time"
)

// A medium that fails may do so thousands of times a second, for any program that may read. So few failures at a time are logged, and the others counted:
// the log of a daemon is a file, in memory mostly.
const (
	saidAtOnce = 20
	saidPause  = 10 * time.Second
)

// saying bounds what is logged. The zero value has said nothing.
type saying struct {
	mu    sync.Mutex
	since time.Time // when the present pause began; protected by mu, as is all below
	said  int       // in it
	left  int       // not said since the last that was
}

// may says whether one more may be logged now, and how many were not since the last that was.
func (s *saying) may(now time.Time) (left int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.since) >= saidPause {
		s.since, s.said = now, 0
	}
	if s.said == saidAtOnce {
		s.left++
		return 0, false
	}
	s.said++
	left, s.left = s.left, 0
	return left, true
}

// imageFailed logs a command that failed on the medium.
func (c *Controller) imageFailed(what string, ns *namespace, lba uint64, err error) {
	left, ok := c.failures.may(time.Now())
	if !ok {
		return
	}
	args := []any{"image", ns.image.Path(), "command", what, "nsid", ns.id, "lba", lba, "error", err}
	if left > 0 {
		args = append(args, "not_logged_before", left)
	}
	c.log.Error("image failed; the kernel's log (dmesg) may say more of the disk below it", args...)
}

// imageProtected logs a write that write protection has refused.
func (c *Controller) imageProtected(what string, ns *namespace, lba uint64, err error) {
	if _, ok := c.failures.may(time.Now()); !ok {
		return
	}
	c.log.Error("the image has become write-protected: "+ns.image.Unprotect(err), "image", ns.image.Path(), "command", what, "nsid", ns.id, "lba", lba, "error", err)
}
