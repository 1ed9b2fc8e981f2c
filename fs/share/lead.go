package share

import (
	"runtime"
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

// leadTaken gives up the lead for a leader whose batch lasts. The client may have submitted more without a signal, so the other goroutine looks.
func (r *ring) leadTaken() {
	r.lead.Unlock()
	r.submit.Wake()
}

// takeAll takes submissions until there are none for ringSpin, or the other goroutine leads. The caller holds lead; takeAll releases it.
func (r *ring) takeAll() {
	var buf [batchEntries]wire.Submission
	for !r.end.Load() {
		n, err := r.take(buf[:])
		if err != nil {
			r.stop() // the client has broken the protocol; it gets no more completions
			r.lookNoMore()
			break
		}
		if n == 0 {
			if len(r.waiting.jobs) > 0 {
				r.dispatchWaiting()
				continue
			}
			if r.spin() {
				continue
			}
			break
		}
		r.roused()
		if all := r.batches(buf[:n]); len(all) > 1 || r.inFlight.Load() > int64(n) {
			for _, b := range all {
				r.pass(b)
			}
		} else if !r.carryOutOnly(all[0]) {
			return
		}
	}
	if len(r.waiting.jobs) > 0 {
		r.dispatchWaiting()
	}
	r.leave()
}

// pass gives a batch to a worker that has nothing to do, or joins it to those that wait.
func (r *ring) pass(b batch) {
	w := &r.waiting
	if len(w.jobs) > 0 && (b.apart || len(w.jobs)+len(b.jobs) > mostEntries || w.bytes+b.bytes > mostBytes) {
		r.dispatchWaiting()
	}
	if len(w.jobs) == 0 {
		*w = b
	} else {
		w.jobs, w.bytes = append(w.jobs, b.jobs...), w.bytes+b.bytes
		r.recycle(b)
	}
	if r.offer(*w) {
		*w = batch{}
	} else if b.apart {
		r.dispatchWaiting()
	}
}

// offer gives a batch to workers of which one has nothing to do, or to a new one if there are few.
func (r *ring) offer(b batch) bool {
	return r.queue.offer(b) || int(r.started.Load()) < mostBegun(b) && r.begin(&b)
}

// mostBegun is up to how many workers one is begun for a batch that finds none idle. Where a GPU copies, workers make its lists, and more of
// them make more; where the CPU does, more than half of the CPUs wait for memory, and for one another.
func mostBegun(b batch) int {
	if j := &b.jobs[0]; j.mem != nil && !j.mem.Addressable() {
		return max(processors*3/4, 1)
	}
	return max(processors/2, 1)
}

// processors is how many threads run at once, as the program began; later there may be more Go processors than that.
var processors = runtime.GOMAXPROCS(0)

// begin begins a worker, if there may be more, for a batch unless that is nil.
func (r *ring) begin(b *batch) bool {
	first := r.started.Load() == 0 // each ring has one
	if !first && !r.tenant.take() {
		return false
	}
	if b != nil {
		r.queue.add(*b) // before the worker looks
	}
	r.workers.Go(func() { r.worker(first) })
	r.started.Add(1)
	return true
}

// dispatchWaiting passes what waits to a worker, and waits until one has taken it.
func (r *ring) dispatchWaiting() {
	if b := r.waiting; !r.offer(b) {
		if r.started.Load() < maxWorkers {
			r.begin(nil)
		}
		r.queue.pass(b)
	}
	r.waiting = batch{}
}

// carryOutOnly carries out a batch that is the only one in flight. It reports whether the caller still leads. No other goroutine uses r.leader meanwhile,
// for while the batch is in flight another one is not the only one.
func (r *ring) carryOutOnly(b batch) bool {
	small := isSmall(b)
	if small && r.lastSmall.Load() < int64(quick) { // the batch ends before the other goroutine could wake up
		turn := r.watch.begin()
		r.carryOutTimed(b, small)
		if r.watch.end(turn) {
			r.complete(b, &r.leader)
			return true
		}
	} else {
		r.rings.DaemonSleeps(true) // submissions from here on wake the other goroutine
		if r.pending() {
			r.rings.DaemonSleeps(false)
			r.pass(b)
			return true
		}
		r.leave()
		r.carryOutTimed(b, small)
	}
	leads := r.lead.TryLock()
	if leads {
		r.rings.DaemonSleeps(false) // before the completions, to which the client may react with more
	}
	r.complete(b, &r.leader)
	return leads
}

func (r *ring) carryOutTimed(b batch, small bool) {
	start := time.Now()
	r.carryOut(b.jobs, &r.leader)
	if small {
		r.lastSmall.Store(int64(time.Since(start)))
	}
}

// isSmall reports whether a batch only reads a few blocks. Such a batch takes about as long as the one before.
func isSmall(b batch) bool {
	bytes := uint64(0)
	for i := range b.jobs {
		if b.jobs[i].Op != wire.OpRead {
			return false
		}
		bytes += min(b.jobs[i].Len, smallBytes+1)
	}
	return bytes <= smallBytes
}

// take copies submissions out of the ring, as many as there is room for completions.
func (r *ring) take(buf []wire.Submission) (int, error) {
	r.mu.Lock()
	room, err := r.rings.Room()
	free := max(int(room)-int(r.inFlight.Load()), 0) // both change with mu held, and only the leader, who calls this, makes it less
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := r.rings.Take(buf[:min(len(buf), free)])
	r.inFlight.Add(int64(n))
	return n, err
}

// spin polls for submissions, for ringSpin or, if the ring is patient, for ringPatient. After it returns false the client signals the next one.
func (r *ring) spin() bool {
	spin := ringSpin
	if r.patient {
		spin = ringPatient
	}
	now := time.Now()
	for end := now.Add(spin); now.Before(end); now = time.Now() {
		if r.pending() {
			return true
		}
	}
	r.patient, r.slept = false, now
	r.rings.DaemonSleeps(true)
	return r.pending()
}

// roused follows submissions. Those that came soon after the leader had gone to sleep make the ring patient: a client that does something between
// its reads would have a thread woken for each.
func (r *ring) roused() {
	if r.slept.IsZero() {
		return
	}
	r.patient = processors >= patientLeast && time.Since(r.slept) < ringPatient-ringSpin
	r.slept = time.Time{}
}

// pending reports whether take would find something.
func (r *ring) pending() bool {
	room, err := r.rings.Room()
	return err != nil || r.rings.Submitted() && int(room) > int(r.inFlight.Load())
}
