package nvmeq

import (
	"runtime"
	"sync/atomic"
	"time"
)

// waiter paces a loop that polls: it spins while an answer is likely to be near, then yields, then sleeps, so that a
// slow controller does not cost a core. The zero value is ready; progress starts it over.
type waiter struct {
	spin   time.Duration // beyond waitSpins
	among  *atomic.Int32 // those who are counted, until end; nil: nobody is
	rounds int
	look   int // the round in which the clock is read next
	since  time.Time
}

const (
	waitSpins  = 32                    // rounds without giving up the thread
	waitLook   = 8                     // rounds between two looks at the clock while spinning beyond them
	waitYield  = 60 * time.Microsecond // then yield to other goroutines for this long
	waitShort  = 50 * time.Microsecond // then sleep
	waitLong   = time.Millisecond      // and, when nothing came for waitPatience, sleep longer
	waitPatien = 20 * time.Millisecond
)

// end says that the loop is over.
func (w *waiter) end() {
	if w.among != nil {
		w.among.Add(-1)
	}
}

// progress says that the loop got somewhere.
func (w *waiter) progress() { w.rounds, w.look = 0, 0 }

// idle waits a little before the next look.
func (w *waiter) idle() {
	w.rounds++
	if w.rounds <= waitSpins || w.rounds < w.look {
		return
	}
	if w.rounds == waitSpins+1 {
		w.since = time.Now()
	}
	switch d := time.Since(w.since) - w.spin; {
	case d < 0:
		w.look = w.rounds + waitLook
	case d < waitYield:
		runtime.Gosched()
	case d < waitPatien:
		time.Sleep(waitShort)
	default:
		time.Sleep(waitLong)
	}
}
