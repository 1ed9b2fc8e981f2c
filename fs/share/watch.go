package share

import (
	"sync/atomic"
	"time"
)

// watchEvery is how often the watch looks: so seldom that a thread woken for it costs nothing beside the requests, and after twice as long at most the
// lead is taken away.
const watchEvery = 50 * time.Millisecond

// watch is about a leader that carries out a batch and keeps the lead, because the batch ends before the other goroutine could wake up: unless the
// device does not answer. Then the watch takes the lead away, so that the other goroutine carries on with the ring. It costs the leader two atomic
// operations; its timer runs while such batches come, and not in a ring that has nothing to do.
type watch struct {
	turn  atomic.Uint64 // odd while the leader carries out such a batch. Who makes it even has the lead
	on    atomic.Bool   // look will be called. Who makes it true may use timer
	timer *time.Timer
	seen  uint64 // turn, when look last looked; look's
	taken func() // called when the lead was taken away
}

func newWatch(taken func()) *watch {
	w := &watch{taken: taken}
	w.timer = time.AfterFunc(time.Hour, w.look)
	w.timer.Stop()
	return w
}

// begin and end are called by the leader before and after a batch. end reports whether the lead is still the caller's.
func (w *watch) begin() (turn uint64) {
	turn = w.turn.Add(1)
	w.lookLater()
	return turn
}

func (w *watch) end(turn uint64) bool { return w.turn.CompareAndSwap(turn, turn+1) }

func (w *watch) lookLater() {
	if !w.on.Load() && w.on.CompareAndSwap(false, true) {
		w.timer.Reset(watchEvery)
	}
}

// look takes the lead away if the batch of its last look has not ended. It looks again unless there was none since.
func (w *watch) look() {
	now := w.turn.Load()
	if now == w.seen {
		if now%2 == 1 && w.end(now) {
			w.taken()
		}
		w.on.Store(false) // before turn is looked at: a batch that begins now has either been seen here or sees this
		if w.turn.Load() != now {
			w.lookLater()
		}
		return
	}
	w.seen = now
	w.timer.Reset(watchEvery)
}
