package jbd2

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/blockdev"
)

// A commit that finds no room on the medium (blockdev.ErrNoSpace), or no memory for its copies, has not happened, and has promised
// nothing: no commit was reported as durable. So it is held instead of failed. Its transaction stays whole
// in memory and is tried again, with the same copies to the same blocks of the log, so that a power cut in between finds the transaction or
// none: when a caller asks, and every retryInterval. Meanwhile what waits for it gets the reason after each try that failed, and so
// does Begin, or memory would grow. A checkpoint is held likewise: the log keeps its copies, and its tail stays.
//
// A flush that failed is never tried again: the kernel, or the drive, may have given up what it could not write, and the next flush
// would succeed without it. Nor is a commit block whose write failed for any other reason.
const (
	retryInterval = 5 * time.Second
	beginPause    = 100 * time.Millisecond // between two tries that Begin asks for
)

// ErrHeld is reported while a commit waits for room or memory; it wraps the cause.
var ErrHeld = errors.New("commits wait")

// Held says that commits wait, and why.
type Held struct {
	Since time.Time
	Err   error // wraps ErrHeld
}

// hold is the commit that waits.
type hold struct {
	Held
	last  time.Time // when it was tried last
	timer *time.Timer
}

type heldError struct {
	since time.Time
	cause error
}

func (e *heldError) Error() string {
	return fmt.Sprintf("%v since %s: %v", ErrHeld, e.since.Format(time.TimeOnly), e.cause)
}
func (e *heldError) Unwrap() []error { return []error{ErrHeld, e.cause} }

// isFull says that the medium had no room for a write, and that nothing else went wrong.
func isFull(err error) bool {
	return errors.Is(err, blockdev.ErrNoSpace) && !errors.Is(err, errFlush)
}

// passes says that what failed may succeed later, and that nothing was lost.
func passes(err error) bool {
	return isFull(err) || errors.Is(err, blockdev.ErrNoMemory) && !errors.Is(err, errFlush)
}

// refused says that writes were refused, for lack of room or memory or since the medium is write-protected, and that nothing else went wrong: the volume
// is as a power cut would leave it, and a journal that ends with that leaves no mark of an error.
func refused(err error) bool {
	return passes(err) || errors.Is(err, blockdev.ErrReadOnly) && !errors.Is(err, errFlush)
}

// Held is what keeps commits from happening, nil if nothing does.
func (j *Journal) Held() *Held {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.held == nil {
		return nil
	}
	h := j.held.Held
	return &h
}

// holdLocked says that a try has failed.
func (j *Journal) holdLocked(cause error) {
	h := j.held
	if h == nil {
		h = &hold{Held: Held{Since: time.Now()}}
		h.timer = time.AfterFunc(j.retry, func() {
			j.mu.Lock()
			j.retryLocked()
			j.mu.Unlock()
		})
		j.held = h
		j.cfg.Log.Warn("commits wait, and changes are refused", "error", cause)
	} else {
		h.timer.Reset(j.retry)
	}
	h.Err, h.last = &heldError{h.Since, cause}, time.Now()
	j.tries++
	j.gate.Broadcast()
	j.wakeLocked()
}

// triesLocked is how many tries will have failed that began before now. Who waits from now on goes by those that come after: one that is under way may have found no room
// before there was some.
func (j *Journal) triesLocked() uint64 {
	if j.busy {
		return j.tries + 1
	}
	return j.tries
}

// retryLocked asks for a try.
func (j *Journal) retryLocked() {
	if j.held != nil {
		j.again = true
		j.work.Signal()
	}
}

// unholdLocked says that a commit has succeeded, or that none will.
func (j *Journal) unholdLocked() {
	if j.held == nil {
		return
	}
	j.held.timer.Stop()
	if j.err == nil {
		j.cfg.Log.Info("commits go on after a wait", "waited", time.Since(j.held.Since).Round(time.Millisecond))
	}
	j.held = nil
	j.gate.Broadcast()
}
