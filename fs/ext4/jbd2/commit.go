package jbd2

import "time"

// slowHandle is how long a commit waits for the open handles before it says so. Handles do bounded I/O, whose own
// deadlines end them.
const slowHandle = 30 * time.Second

// committer is the goroutine that commits. It owns a transaction from the closing of the gate to its end.
func (j *Journal) committer() {
	defer close(j.stopped)
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		t := j.running
		switch {
		case j.err != nil && j.quit:
			return
		case j.err == nil && t != nil && (j.quit || !t.tid.After(j.wanted)):
			j.commitLocked(t)
		case j.quit:
			return
		default:
			j.work.Wait()
		}
	}
}

// commitLocked commits t, the running transaction. It holds j.mu on entry and return, not between.
func (j *Journal) commitLocked(t *transaction) {
	// 1. Close the gate.
	j.closing = true
	if t.open > 0 {
		slow := time.AfterFunc(slowHandle, func() {
			j.cfg.Logf("a commit has waited %v for an operation to end: it holds a handle for too long", slowHandle)
		})
		for t.open > 0 && j.err == nil {
			j.idle.Wait()
		}
		slow.Stop()
	}
	if t.timer != nil {
		t.timer.Stop()
	}
	if j.err == nil && j.cfg.BeforeCommit != nil && t.timer != nil {
		h := &Handle{j: j, txn: t, credits: j.cfg.BeforeCommitCredits}
		t.open++
		j.mu.Unlock()
		j.cfg.BeforeCommit(h)
		h.keep()
		j.mu.Lock()
		t.reserved -= h.credits
		t.open--
		h.txn = nil
	}

	// 2. Copy. Handles are the only ones to change dirty buffers, and there are none.
	err := j.err
	if err == nil {
		j.mu.Unlock()
		err = j.sink.freeze(t)
		j.mu.Lock()
	}
	for _, b := range t.dirty {
		b.txn.Store(nil)
	}

	// 3. Open the gate.
	j.running, j.committing = nil, t
	j.closing = false
	j.gate.Broadcast()

	// 4, 5 and 6. Write.
	if err == nil {
		j.mu.Unlock()
		err = j.sink.commit(t)
		if err == nil {
			j.cache.counters.commits.Add(1)
			for _, f := range t.onCommit {
				f()
			}
		}
		j.mu.Lock()
	}
	j.committing = nil
	if err != nil {
		// What is in memory stays there for readers until Close: the medium has older contents.
		for _, b := range t.dirty {
			j.lost = append(j.lost, b)
		}
		j.abortLocked(err)
	} else {
		j.committed = t.tid
	}
	j.done.Broadcast()
}
