package residency

import (
	"fmt"
	"syscall"
	"time"

	"github.com/lanefs/lanefs/gpu/calls"
)

// Calls of the runtime's may not return where its GPU hangs: to allocate, to free, to import and to export. Who makes one waits for it as long as somebody wants what it gives, and for
// failedWait once the runtime has failed; then it is left to end by itself, or with the process. None is made under a lock, nor while a file is changed.

const (
	failedWait = 2 * time.Second
	failedLook = 100 * time.Millisecond // how often it is looked whether the runtime has failed
)

var errHangs = fmt.Errorf("the GPU has failed, and a call of its driver does not return: %w", syscall.EIO)

// await returns what f returns. If it is given up, with ErrGivenUp since gone was closed or errHangs since the runtime had failed, ended is false, and what f returns is undo's, which
// another goroutine calls then.
func await[T any](failed func() bool, gone <-chan struct{}, f func() (T, error), undo func(T)) (v T, ended bool, err error) {
	if failed == nil && gone == nil {
		v, err = f()
		return v, true, err
	}
	counts := func() bool { return failed != nil && failed() }
	got, end, err := calls.Make(calls.Wait{Limit: failedWait, Step: failedLook, Spent: calls.While(counts), Over: gone}, f, func(v T, _ error) { undo(v) })
	switch end {
	case calls.Unwanted:
		return v, false, ErrGivenUp
	case calls.Late:
		return v, false, errHangs
	}
	return got, true, err
}

// free closes memory beside its caller, who changes a file.
func (p *Pool) free(all []*fileRange) {
	if len(all) == 0 {
		return
	}
	done := make(chan struct{})
	p.mu.Lock()
	before := p.freed
	p.freed = done
	p.mu.Unlock()
	go func() {
		defer close(done)
		for _, r := range all {
			_ = r.mem.close() // nothing can be done about an error: the memory is lost
		}
		if before != nil {
			<-before
		}
	}()
}

// awaitFrees waits until what free was called for is free. It says whether there was anything.
func (p *Pool) awaitFrees() bool {
	p.mu.Lock()
	last := p.freed
	p.mu.Unlock()
	if last == nil {
		return false
	}
	<-last
	return true
}
