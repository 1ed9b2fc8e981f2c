package jbd2

// Latest is the newest transaction that has begun. What was changed before the call belongs to it or to an older one; so
// who does not know which transaction changed something may wait for this one. Before the first transaction it is one that
// counts as committed.
func (j *Journal) Latest() TID {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.next - 1
}

// Sync makes transaction t durable, and all file data written before the call. Of a journal that was aborted nothing is said to be
// durable, not even what was before.
func (j *Journal) Sync(t TID) error {
	j.mu.Lock()
	if err := j.err; err != nil {
		j.mu.Unlock()
		return err
	}
	// The commit of a transaction that is still running flushes after this. One that is under way may have flushed.
	running := j.running != nil && j.running.tid == t
	j.mu.Unlock()
	if err := j.WaitCommit(t); err != nil || running {
		return err
	}
	return j.flush()
}
