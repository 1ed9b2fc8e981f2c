package blockdev

import (
	"errors"
	"fmt"
)

// Errors that callers can test for with errors.Is. Do returns them in an *Error, as it does an NVMe status.
var (
	ErrInvalid     = errors.New("invalid request")     // unaligned, past the end, unknown op: nothing was sent
	ErrReadOnly    = errors.New("device is read-only") // nothing was written, and what was before is still there
	ErrUnsupported = errors.New("not supported by the device")
	ErrClosed      = errors.New("device is closed")
	// ErrNoSpace is the error of a write for which a thin-provisioned medium has no room, such as an image file on a full file system.
	// Some blocks of the request may have been written. Earlier writes are not affected, and a retry may succeed.
	ErrNoSpace = errors.New("the medium has no room left")
)

// Worse is a, unless b is worse: of the errors that say that a write was refused ErrNoSpace may pass, ErrReadOnly takes somebody who lifts it, and any other error is
// worse than both.
func Worse(a, b error) error {
	if badness(b) > badness(a) {
		return b
	}
	return a
}

func badness(err error) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrNoSpace):
		return 1
	case errors.Is(err, ErrReadOnly):
		return 2
	}
	return 3
}

// Error is the failure of a request, or of the part of it that failed: Off and Len are that part's.
type Error struct {
	Op  Op
	Off Bytes
	Len Bytes
	LBA LBA   // of Off
	Err error // one of the above, or an NVMe status
}

func (e *Error) Error() string {
	if e.Op == OpFlush {
		return fmt.Sprintf("flush: %v", e.Err)
	}
	return fmt.Sprintf("%v of %d bytes at %d (LBA %d): %v", e.Op, e.Len, e.Off, e.LBA, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

var opNames = [...]string{"", "read", "write", "flush", "discard", "write zeroes"}

func (o Op) String() string {
	if o > 0 && int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}
