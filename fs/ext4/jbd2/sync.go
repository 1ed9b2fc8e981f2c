package jbd2

import "errors"

// Latest is the newest transaction that has begun. What was changed before the call belongs to it or to an older one; so
// a caller that does not know which transaction changed something may wait for this one. Before the first transaction it is one that
// counts as committed.
func (j *Journal) Latest() TID {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}

// Sync makes transaction t durable, and all file data written before the call.
func (j *Journal) Sync(t TID) error {
	j.mu.Lock()
	// The commit of a transaction that is still running flushes after this. One that is under way may have flushed.
	running := j.running != nil && j.running.tid == t
	j.mu.Unlock()
	if err := j.WaitCommit(t); err != nil || running {
		return err
	}
	return j.flush()
}

// flush is Cache.Flush for a journal: one that fails aborts it. What was not made durable then may be lost, and no flush that
// comes after it would say so; so from then on nothing is said to be durable, until the next mount.
func (j *Journal) flush() error {
	if err := j.Err(); errors.Is(err, ErrAborted) {
		return err
	}
	err := j.cache.Flush()
	if err != nil {
		j.Abort(err)
		return j.Err()
	}
	return nil
}
