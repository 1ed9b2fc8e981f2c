package share

import (
	"time"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// run leads the ring whenever the client has signalled and the other goroutine does not lead, until the ring ends.
func (r *ring) run() {
	for !r.end.Load() {
		r.called.Store(true)
		if r.lead.TryLock() {
			r.takeAll()
		}
		if r.submit.Wait() != nil {
			return
		}
	}
}

// leave gives up the lead. If the other goroutine was woken meanwhile and went back to sleep, it is woken again if there are submissions.
func (r *ring) leave() {
	r.lead.Unlock()
	if r.called.Swap(false) && r.pending() {
		r.submit.Wake()
	}
}

// takeAll takes submissions until there are none for ringSpin, or the other goroutine leads. The caller holds lead; takeAll releases it.
func (r *ring) takeAll() {
	var buf [batchEntries]wire.Submission
	for !r.end.Load() {
		n, err := r.take(buf[:])
		if err != nil {
			r.stop() // the client has broken the protocol; it gets no more completions
			break
		}
		if n == 0 {
			if r.spin() {
				continue
			}
			break
		}
		all := r.batches(buf[:n])
		if len(all) > 1 || r.inFlight.Load() > int64(n) {
			for _, b := range all {
				r.dispatch(b)
			}
		} else if !r.carryOutOnly(all[0]) {
			return
		}
	}
	r.leave()
}

// carryOutOnly carries out a batch that is the only one in flight. It reports whether the caller still leads.
func (r *ring) carryOutOnly(b []job) bool {
	small := isSmall(b)
	if small && r.lastSmall.Load() < int64(quick) { // the batch ends before the other goroutine could wake up
		r.carryOutTimed(b, small)
		r.complete(b, &r.leader)
		return true
	}
	r.rings.DaemonSleeps(true) // submissions from here on wake the other goroutine
	if r.pending() {
		r.rings.DaemonSleeps(false)
		r.dispatch(b)
		return true
	}
	r.leave()
	r.carryOutTimed(b, small)
	leads := r.lead.TryLock()
	if leads {
		r.rings.DaemonSleeps(false) // before the completions, to which the client may react with more
	}
	r.complete(b, &r.leader)
	return leads
}

func (r *ring) carryOutTimed(b []job, small bool) {
	start := time.Now()
	r.carryOut(b, &r.leader)
	if small {
		r.lastSmall.Store(int64(time.Since(start)))
	}
}

// isSmall reports whether a batch only reads a few blocks. Such a batch takes about as long as the one before.
func isSmall(b []job) bool {
	bytes := uint64(0)
	for i := range b {
		if b[i].Op != wire.OpRead {
			return false
		}
		bytes += min(b[i].Len, smallBytes+1)
	}
	return bytes <= smallBytes
}

// dispatch passes a batch to a worker.
func (r *ring) dispatch(b []job) {
	select {
	case r.work <- b:
		return
	default:
	}
	if r.started == 0 {
		r.started++
		r.workers.Go(r.worker)
	} else if r.started < maxWorkers {
		select {
		case r.places <- struct{}{}:
			r.started++
			r.workers.Go(r.worker)
		default:
		}
	}
	r.work <- b
}

// take copies submissions out of the ring, as many as there is room for completions.
func (r *ring) take(buf []wire.Submission) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room, err := r.rings.Room()
	if err != nil {
		return 0, err
	}
	n, err := r.rings.Take(buf[:min(len(buf), max(int(room)-int(r.inFlight.Load()), 0))])
	r.inFlight.Add(int64(n))
	return n, err
}

// spin polls for submissions for ringSpin. After it returns false the client signals the next one.
func (r *ring) spin() bool {
	for end := time.Now().Add(ringSpin); time.Now().Before(end); {
		if r.pending() {
			return true
		}
	}
	r.rings.DaemonSleeps(true)
	return r.pending()
}

// pending reports whether take would find something.
func (r *ring) pending() bool {
	room, err := r.rings.Room()
	return err != nil || r.rings.Submitted() && int(room) > int(r.inFlight.Load())
}
