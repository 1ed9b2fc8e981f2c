package share

import (
	"time"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// run leads the ring whenever the client has signalled and nobody else does, until the ring ends.
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

// leave gives the lead up. Who had been called meanwhile and slept on is called again, if there is anything.
func (r *ring) leave() {
	r.lead.Unlock()
	if r.called.Swap(false) && r.pending() {
		r.submit.Rouse()
	}
}

// takeAll takes submissions until there are none for a while, or another leads. The caller holds lead, and not when it returns.
func (r *ring) takeAll() {
	var buf [batchEntries]wire.Submission
	for !r.end.Load() {
		n, err := r.take(buf[:])
		if err != nil {
			r.stop() // the client broke the rules; it sees no completion any more
			break
		}
		if n == 0 {
			if r.more() {
				continue
			}
			break
		}
		all := r.batches(buf[:n])
		if len(all) > 1 || r.flying.Load() > int64(n) {
			for _, b := range all {
				r.give(b)
			}
		} else if !r.alone(all[0]) {
			return
		}
	}
	r.leave()
}

// alone carries out the only batch that is under way. It says whether the caller leads still.
func (r *ring) alone(b []job) bool {
	small := isSmall(b)
	if small && r.lately.Load() < int64(quick) { // whoever comes meanwhile waits no longer than for the other one to wake up
		r.carryOutTimed(b, small)
		r.complete(b, &r.lone)
		return true
	}
	r.rings.DaemonSleeps(true) // the other one hears of what comes
	if r.pending() {
		r.rings.DaemonSleeps(false)
		r.give(b)
		return true
	}
	r.leave()
	r.carryOutTimed(b, small)
	leads := r.lead.TryLock()
	if leads {
		r.rings.DaemonSleeps(false) // before the client can have more
	}
	r.complete(b, &r.lone)
	return leads
}

func (r *ring) carryOutTimed(b []job, small bool) {
	start := time.Now()
	r.carryOut(b, &r.lone)
	if small {
		r.lately.Store(int64(time.Since(start)))
	}
}

// isSmall says whether a batch is a few blocks to read: how long that takes, the one before tells.
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

// give hands a batch to a worker.
func (r *ring) give(b []job) {
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

// take copies submissions out, as many as there is room to answer.
func (r *ring) take(buf []wire.Submission) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room, err := r.rings.Room()
	if err != nil {
		return 0, err
	}
	n, err := r.rings.Take(buf[:min(len(buf), max(int(room)-int(r.flying.Load()), 0))])
	r.flying.Add(int64(n))
	return n, err
}

// more waits for a while for more; after false the client signals it.
func (r *ring) more() bool {
	for end := time.Now().Add(ringSpin); time.Now().Before(end); {
		if r.pending() {
			return true
		}
	}
	r.rings.DaemonSleeps(true)
	return r.pending()
}

// pending says whether take would find something.
func (r *ring) pending() bool {
	room, err := r.rings.Room()
	return err != nil || r.rings.Submitted() && int(room) > int(r.flying.Load())
}
