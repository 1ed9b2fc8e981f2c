package copyengine

import "sync"

// turns lets large copies to or from a device end one after the other: copies of all streams share its bus, so those that begin together end together, and
// then the bus waits for whoever asks for the next ones. With 8 requests of 16 MiB under way that is a twentieth of the time (H100, H200).
//
// A batch waits before its first large copy, in the order in which batches came, and has its turn until all its copies have ended. Nobody waits who has a turn, or a stream, of another
// device (Several).
type turns struct {
	mu      sync.Mutex
	bytes   int64    // of those that have their turn; these are protected by mu
	batches int      // that have their turn
	waiting []waiter // the first is next
}

type waiter struct {
	bytes int64
	turn  chan struct{} // closed when it has its turn
}

const (
	turnBatches = 3        // that have their turn at least: one ends, one is under way, one begins
	turnBytes   = 40 << 20 // as long as those under way are fewer bytes another one begins
)

func (t *turns) freeLocked() bool { return t.batches < turnBatches || t.bytes < turnBytes }

// begin waits for a batch's turn. Its first copy has n bytes. wait is called before it waits: it lets go of what others may wait for.
func (t *turns) begin(n int64, wait func()) {
	if t.try(n) {
		return
	}
	wait()
	t.mu.Lock()
	if t.tryLocked(n) {
		t.mu.Unlock()
		return
	}
	w := waiter{n, make(chan struct{})}
	t.waiting = append(t.waiting, w)
	t.mu.Unlock()
	<-w.turn
}

func (t *turns) try(n int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.tryLocked(n)
}

func (t *turns) tryLocked(n int64) bool {
	if len(t.waiting) > 0 || !t.freeLocked() {
		return false
	}
	t.batches, t.bytes = t.batches+1, t.bytes+n
	return true
}

// more adds a copy to a batch that has its turn.
func (t *turns) more(n int64) {
	t.mu.Lock()
	t.bytes += n
	t.mu.Unlock()
}

// end ends the turn of a batch with so many bytes in all.
func (t *turns) end(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batches, t.bytes = t.batches-1, t.bytes-n
	for len(t.waiting) > 0 && t.freeLocked() {
		w := t.waiting[0]
		t.waiting = t.waiting[1:]
		t.batches, t.bytes = t.batches+1, t.bytes+w.bytes
		close(w.turn)
	}
}
