package jbd2

import (
	"fmt"
	"time"
)

// slowHandle is how long a commit waits for the open handles before it says so. Handles do bounded I/O, whose own
// deadlines end them.
const slowHandle = 30 * time.Second

// commitLocked commits t, the running transaction. It holds j.mu on entry and return, not between.
func (j *Journal) commitLocked(t *transaction) {
	// 0. See to it that there is memory for the copies, while handles go on. freeze gets the rest for what they add.
	j.again = false
	size := j.sizeLocked(t, 0)
	j.mu.Unlock()
	err := j.sink.prepare(size)
	j.mu.Lock()
	if err != nil && j.err == nil {
		if passes(err) && !j.quit {
			j.holdLocked(err)
		} else {
			j.abortLocked(err)
		}
		return
	}

	// 1. Close the gate.
	j.closing = true
	if t.open > 0 {
		slow := time.AfterFunc(slowHandle, func() {
			j.cfg.Log.Warn("a commit waits for an operation to end: it holds a handle for too long", "waited", slowHandle)
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
	err = j.err
	if err == nil {
		j.mu.Unlock()
		err = j.sink.freeze(t)
		j.mu.Lock()
		if err != nil && passes(err) && !j.quit && j.err == nil {
			// Nothing of it was written: it goes on as if it had never been asked for.
			if j.cfg.BeforeCommit != nil && t.timer != nil {
				t.reserved += j.cfg.BeforeCommitCredits
			}
			j.closing = false
			j.holdLocked(err)
			return
		}
	}
	for _, b := range t.dirty {
		b.txn.Store(nil)
	}

	// 3. Open the gate.
	j.running, j.committing = nil, t
	j.closing = false
	j.gate.Broadcast()
	if err != nil {
		j.abortLocked(err)
		j.giveUpLocked(t)
		return
	}
	j.writeLocked(t)
}

// writeLocked is what is left to do of a commit, 4 to 6, when t is copied. It holds j.mu on entry and return, not between.
func (j *Journal) writeLocked(t *transaction) {
	j.again = false
	j.mu.Unlock()
	err := j.sink.commit(t)
	if err == nil {
		j.cache.counters.commits.Add(1)
		for _, f := range t.onCommit {
			f()
		}
	}
	j.mu.Lock()
	switch {
	case err == nil:
		j.committing, j.committed = nil, t.tid
		j.unholdLocked()
		t.done.BroadcastUnlocked()
	case passes(err) && !j.quit && j.err == nil:
		j.holdLocked(err)
	default:
		if passes(err) {
			err = fmt.Errorf("the last changes are lost, none of which was reported as durable: %w", err)
		}
		j.abortLocked(err)
		j.giveUpLocked(t)
	}
}

// giveUpLocked ends t, which will never be committed.
func (j *Journal) giveUpLocked(t *transaction) {
	j.committing = nil
	j.sink.giveUp()
	// What is in memory stays there for readers until Close: the medium has older contents.
	for _, b := range t.dirty {
		j.lost = append(j.lost, b)
	}
	t.done.Broadcast()
}
