package uring

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/schedidle"
)

// queue is that of a CPU, and its servers.
//
// All its servers register before the connection starts. The kernel gives a request that arrives to a server that waits, but a server
// that registers, or waits again, gets one that has arrived before only from COMMIT_AND_FETCH: were servers added later, requests
// could be left in the queue beside them until another one is answered, which may wait for those. For the same reason a mount
// needs a max_background that is not reached: see [MaxBackground].
type queue struct {
	t      *Transport
	cpu    int
	online bool
	grown  atomic.Bool // the CPU was offline, and has come online

	sched      schedidle.CPU
	largeReads atomic.Int32 // see readTogether
	registered atomic.Int32 // servers that the kernel knew at the start
}

// taken notes a request. That of a CPU which was offline gets the servers that it lacks.
func (q *queue) taken() {
	if q.online || !q.grown.CompareAndSwap(false, true) {
		return
	}
	for range q.t.opt.Servers - 1 {
		q.t.running.Add(1)
		go q.another()
	}
}

// another is the life of a server that is added later.
func (q *queue) another() {
	defer q.t.running.Done()
	s, err := newServer(q)
	if err == nil {
		defer s.close()
		err = s.register()
	}
	if err != nil {
		if !ended(err) {
			q.t.opt.Log.Warn("FUSE over io_uring: a CPU gets fewer threads", "cpu", q.cpu, "error", err)
		}
		return
	}
	s.serve(q.t.handler)
}
