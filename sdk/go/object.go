package lanefs

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// object is what the daemon knows by a handle. The number is of one session, and once released it may be another object's.
type object struct {
	s      *Session
	handle uint32
	closed atomic.Bool
}

// in returns the handle for requests of a session.
func (o *object) in(s *Session) (uint32, error) {
	switch {
	case o.s != s:
		return 0, fmt.Errorf("a file or memory of another session than the ring's: %w", unix.EINVAL)
	case o.closed.Load():
		return 0, unix.EBADF // as the daemon says, if it has no other object of that number
	}
	return o.handle, nil
}

// release has the daemon forget the object, once.
func (o *object) release() error {
	if o.closed.Swap(true) {
		return os.ErrClosed
	}
	return o.s.release(o.handle)
}
