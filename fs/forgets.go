package fs

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// forgets has FORGETs come together. With requests on rings they are almost all that comes by /dev/fuse, one for each file that a
// program removes, and each wakes the thread that reads there: on a virtual machine that costs more than what the message says. So the
// thread naps before it deals with one, and while it does the kernel gathers the next ones into one message. (go-fuse has no other thread read
// while one deals with a FORGET.)
//
// Nobody waits for an answer to a FORGET. The space of a removed file is free a nap later, for which a request that finds the volume full
// waits (see reclaim). An INTERRUPT may wait as long; none has an effect.
type forgets struct {
	ended atomic.Int64 // when the last one was dealt with, ns since began
}

const (
	forgetNap = time.Millisecond
	// forgetGap is how long it takes from one FORGET of a message to the next at most. It is shorter than a read(2) of /dev/fuse, so it tells whether
	// one came in a message of its own. If that is wrong there is a nap too many or too few.
	forgetGap = time.Microsecond
)

var began = time.Now()

// gather naps if a new message has come.
func (f *forgets) gather() {
	if !f.fresh(time.Since(began)) {
		return
	}
	// The thread sleeps in the kernel: Go's Sleep would wake another to keep the time.
	t := unix.NsecToTimespec(int64(forgetNap))
	_ = unix.Nanosleep(&t, nil)
}

// fresh says whether a FORGET that is dealt with from now on came in a message of its own.
func (f *forgets) fresh(now time.Duration) bool {
	return now-time.Duration(f.ended.Load()) >= forgetGap
}

// done notes when a FORGET was dealt with.
func (f *forgets) done(now time.Duration) { f.ended.Store(int64(now)) }
