// Package poll paces loops that poll. A Waiter spins at first, then yields, then sleeps.
package poll

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu/nap"
)

// Waiter paces a loop that polls: it spins while an answer is likely to be near, then yields, then sleeps, so that a
// slow controller does not cost a core. The zero value is ready; Progress starts it over.
type Waiter struct {
	Spin  time.Duration // how much longer to spin than waitSpins rounds
	Among *atomic.Int32 // a count of loops that End takes this one from; nil: it is not counted

	rounds int
	check  int // the round in which the clock is read next
	since  time.Time
}

const (
	waitSpins     = 32                    // rounds without giving up the thread
	waitCheck     = 8                     // rounds between two reads of the clock while spinning beyond them
	waitYield     = 60 * time.Microsecond // then yield to other goroutines for this long
	waitShort     = 50 * time.Microsecond // then sleep
	waitLong      = time.Millisecond      // and, when nothing came for waitLongAfter, sleep longer
	waitLongAfter = 20 * time.Millisecond
)

// End says that the loop is over.
func (w *Waiter) End() {
	if w.Among != nil {
		w.Among.Add(-1)
	}
}

// Progress says that the loop made progress.
func (w *Waiter) Progress() { w.rounds, w.check = 0, 0 }

// Idle waits before the next poll: the longer nothing has come, the longer.
func (w *Waiter) Idle() {
	w.rounds++
	if w.rounds <= waitSpins || w.rounds < w.check {
		return
	}
	if w.rounds == waitSpins+1 {
		w.since = time.Now()
	}
	switch d := time.Since(w.since) - w.Spin; {
	case d < 0:
		w.check = w.rounds + waitCheck
	case d < waitYield:
		runtime.Gosched()
	case d < waitLongAfter:
		nap.For(waitShort)
	default:
		time.Sleep(waitLong)
	}
}
