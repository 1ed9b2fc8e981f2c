package jbd2

import (
	"fmt"
	"runtime/debug"
)

// task is what there is to do for whoever commits.
type task uint8

const (
	noTask     task = iota
	giveUpTask      // end the transaction that will never be committed
	markTask        // leave word of the abort
	writeTask       // go on with a transaction that is copied
	commitTask      // commit the running transaction
)

// taskLocked is what there is to do now. It is done by one goroutine at a time, which is busy.
func (j *Journal) taskLocked() task {
	t, c := j.running, j.committing
	tryHeld := j.held == nil || j.again || j.quit
	switch {
	case j.busy:
		return noTask
	case j.err != nil && c != nil:
		return giveUpTask
	case j.failed && !j.marking:
		return markTask
	case j.err == nil && c != nil && tryHeld:
		return writeTask
	case j.err == nil && c == nil && t != nil && tryHeld && (j.quit || !t.tid.After(j.wanted)):
		return commitTask
	}
	return noTask
}

// doLocked does what there is to do, if anything, and says whether it did. It holds j.mu on entry and return, not between.
func (j *Journal) doLocked() bool {
	what := j.taskLocked()
	if what == noTask {
		return false
	}
	j.busy = true
	defer endOnPanic()
	if j.cfg.Measure != nil && (what == commitTask || what == writeTask) {
		defer j.cfg.Measure().End()
	}
	switch what {
	case giveUpTask:
		j.giveUpLocked(j.committing)
	case markTask:
		j.markLocked()
	case writeTask:
		j.writeLocked(j.committing)
	case commitTask:
		j.commitLocked(j.running)
	}
	j.busy = false
	return true
}

// endOnPanic ends the process, as a panic in the committer does. A caller that leads may be a request, whose server would recover and go on
// beside a commit that nobody ends.
func endOnPanic() {
	if r := recover(); r != nil {
		text := fmt.Sprintf("jbd2: %v\n%s", r, debug.Stack())
		go panic(text)
		select {}
	}
}

// committer is the goroutine that commits where nobody waits who could: a timer, Begin or Close has asked for it.
func (j *Journal) committer() {
	defer close(j.stopped)
	j.mu.Lock()
	defer j.mu.Unlock()
	defer j.markedLocked()
	for {
		switch {
		case j.doLocked():
		case j.quit && !j.busy:
			return
		default:
			j.work.Wait()
		}
	}
}

// leadLocked lets a caller that waits for a commit carry it out itself, which saves waking the committer, and the caller after that.
// It says whether there was something to do. What is left to do then goes to one of those that wait for it, who must be woken anyway.
func (j *Journal) leadLocked() bool {
	if !j.doLocked() {
		return false
	}
	switch t := j.running; {
	case j.taskLocked() == commitTask && t.waiters > 0:
		t.done.Signal()
	case j.taskLocked() != noTask || j.quit:
		j.work.Signal()
	}
	return true
}

// markLocked leaves word of an abort in the journal's superblock. It holds j.mu on entry and return, not between.
func (j *Journal) markLocked() {
	j.marking = true
	j.mu.Unlock()
	if err := j.sink.mark(); err != nil {
		j.cfg.Log.Error("the journal's superblock could not be marked, so the next mount does not know of the error; see that the device works again, and then run e2fsck on the volume", "error", err)
	}
	j.mu.Lock()
	j.markedLocked()
}

// markedLocked wakes what waits for the mark.
func (j *Journal) markedLocked() {
	j.marked = true
	j.mark.Broadcast()
}
