package blockdev

import (
	"errors"
	"fmt"
)

// Errors that callers tell apart, always inside an *Error. What the controller says is the NVMe status, likewise inside.
var (
	ErrInvalid     = errors.New("invalid request") // unaligned, past the end, wrong op: nothing was sent
	ErrReadOnly    = errors.New("device is read-only")
	ErrUnsupported = errors.New("not supported by the device")
	ErrClosed      = errors.New("device is closed")
	// ErrNoSpace is what a write is told for which the medium has no room, as thin ones may: an image file on a full file system. Blocks of
	// its range may have been written. It may succeed when there is room again, and all that was accepted before is still there.
	ErrNoSpace = errors.New("the medium has no room left")
)

// Error is the failure of one request. Where only a part of the request failed, Off and Len are that part.
type Error struct {
	Op  Op
	Off Bytes
	Len Bytes
	LBA LBA   // of Off
	Err error // ErrInvalid and the like, or the NVMe status
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
