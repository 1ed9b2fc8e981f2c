package schedidle

import (
	"sync"

	"golang.org/x/sys/unix"
)

// here are the threads of all groups, so that code which knows nothing of requests finds the one that it runs on.
var here registry

// registry finds a thread by its number.
type registry struct {
	mu  sync.RWMutex
	all map[int32]*Thread // protected by mu
}

func (r *registry) add(t *Thread) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[int32]*Thread{}
	}
	r.all[t.s.tid] = t
}

func (r *registry) remove(t *Thread) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, t.s.tid)
}

// LeaveHere is Leave of the thread that the caller runs on, if that is in a group. It is for what may have a thread begin that no guard knows: the kernel's workers of an io_uring
// and those of a GPU's runtime take the policy of the thread that has them begin (sched(7)), and keep it.
func LeaveHere() {
	here.mu.RLock()
	t := here.all[int32(unix.Gettid())]
	here.mu.RUnlock()
	if t.Idle() { // no other goroutine runs on that thread
		t.g.left.Add(1)
	}
	t.Leave()
}
