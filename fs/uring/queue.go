package uring

import (
	"fmt"
	"sync/atomic"
)

// queue is that of a CPU, and its servers.
type queue struct {
	t      *Transport
	cpu    int
	online bool
	// servers counts those that there are, idle those that wait for a request or are being started.
	servers, idle atomic.Int32
}

// taken notes that a server has taken a request, and starts another one if it was the last that was idle.
func (q *queue) taken() {
	if q.idle.Add(-1) > 0 {
		return
	}
	if n := q.servers.Add(1); int(n) > q.t.opt.Servers {
		q.servers.Add(-1)
		return
	}
	q.idle.Add(1)
	q.t.running.Add(1)
	go q.another()
}

// another is a further server's life. Only the first one is bound to the CPU: more are needed when a request waits, or when there are
// more requests than one CPU may be enough for.
func (q *queue) another() {
	defer q.t.running.Done()
	s, err := newServer(q, false)
	if err == nil {
		defer s.close()
		err = s.register()
	}
	if err != nil {
		q.idle.Add(-1)
		if !ended(err) {
			q.t.opt.Logf("%v", fmt.Errorf("FUSE over io_uring: CPU %d gets no more than %d threads: %w", q.cpu, q.servers.Load()-1, err))
		}
		return // and counts as one, so that no other is tried
	}
	s.serve(q.t.handler)
}
