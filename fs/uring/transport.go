package uring

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/schedidle"
)

// Options of Open.
type Options struct {
	// Servers is how many threads a queue has, and so how many requests of a CPU may be under way; 0: DefaultServers of this machine.
	Servers int
	// Payload is how many bytes a payload buffer has: the most that a request or an answer carries besides its headers. At least
	// the mount's max_write, and its max_pages.
	Payload int
	// Alloc gives payload buffers; it may give none, and the payload is anonymous memory, which costs what is used of it. nil: all are.
	Alloc func(size int) *exchange.Payload
	// Keepers is how many threads may keep their Go processor while they wait (see keep.go and DefaultKeepers). The caller has the runtime have as
	// many processors more.
	Keepers int
	// SchedIdle has threads with many requests run with SCHED_IDLE, where that can be had (see package schedidle). Threads that they start, as the kernel's
	// workers for an io_uring, would inherit it: a Handler calls schedidle.LeaveHere before that.
	SchedIdle bool
	// Crowded is called for each request that finds as many others under way as there are CPUs; it must be quick. nil: nothing is.
	Crowded func()
	// Failed is told that a queue may not be served any more, because io_uring itself has failed: the mount's requests may wait for
	// ever, unless the connection is aborted. nil: nothing is.
	Failed func(err error)
	Log    *slog.Logger // nil: discard
}

// DefaultServers is how many requests of a CPU may be under way on a machine with so many CPUs: enough for a CPU's processes, and not
// so many that the threads weigh.
func DefaultServers(cpus int) int { return min(max(128/cpus, 4), 16) }

// MaxBackground is the mount's max_background, with which the kernel holds back no request. It bounds them otherwise for all queues
// together, and may then leave requests in a queue whose servers wait (fuse_uring_flush_bg of Linux 6.14 to 6.18).
const MaxBackground = 65535

// Transport is FUSE over io_uring for one connection.
type Transport struct {
	opt      Options
	handler  exchange.Handler // set before start is closed
	data     exchange.Data    // likewise: the handler, if it is one; else nil
	queues   []*queue
	servers  int // all that there are from the start
	fd       int // of /dev/fuse; likewise
	cpus     int // that were online at the start
	running  sync.WaitGroup
	start    chan struct{} // closed: servers register
	started  chan struct{} // closed: all have, and serve
	quit     chan struct{} // closed: those that do not serve end
	stop     sync.Once
	end      sync.Once
	underway atomic.Int32     // requests
	keepers  atomic.Int32     // at most Options.Keepers, and those that just ask
	idle     *schedidle.Group // nil: not wanted, or it cannot be had
	noIdle   error            // why it cannot
	ready    chan error       // of each server: what came of making it, then of registering it
}

// Open makes the servers of each CPU that is online, and one for each that is not but could be. It is called before the mount: what can
// fail with io_uring itself fails here. The error is an Unavailable where there is something to say. Close ends what was not started.
func Open(opt Options) (*Transport, error) {
	if err := Check("/"); err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	opt.Payload = (max(opt.Payload, exchange.MinPayload) + page - 1) / page * page
	if opt.Alloc == nil {
		opt.Alloc = func(int) *exchange.Payload { return nil }
	}
	if opt.Crowded == nil {
		opt.Crowded = func() {}
	}
	if opt.Failed == nil {
		opt.Failed = func(error) {}
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	possible, err := cpus("possible")
	if err != nil {
		return nil, err
	}
	online, err := cpus("online")
	if err != nil {
		return nil, err
	}
	if opt.Servers == 0 {
		opt.Servers = DefaultServers(len(online))
	}
	if err := room("/", len(online)*opt.Servers+len(possible)-len(online)+spareThreads(len(online))); err != nil {
		return nil, err
	}
	t := &Transport{opt: opt, fd: -1, cpus: len(online), start: make(chan struct{}), started: make(chan struct{}), quit: make(chan struct{}), ready: make(chan error)}
	if opt.SchedIdle {
		if t.idle, t.noIdle = schedidle.New(len(possible) * opt.Servers); t.noIdle != nil {
			opt.Log.Debug("FUSE over io_uring: programs may be woken on other CPUs than their own", "why", t.noIdle)
		}
	}
	for _, cpu := range possible {
		q, n := &queue{t: t, cpu: cpu, online: slices.Contains(online, cpu)}, 1
		if q.online {
			n = opt.Servers
		}
		t.queues, t.servers = append(t.queues, q), t.servers+n
		t.running.Add(n)
		for range n {
			go t.serve(q)
		}
	}
	if err := t.all(); err != nil {
		t.Close()
		return nil, because(err)
	}
	return t, nil
}

// serve is the life of a server.
func (t *Transport) serve(q *queue) {
	defer t.running.Done()
	s, err := newServer(q)
	t.ready <- err
	if err != nil {
		return
	}
	defer s.close()
	select {
	case <-t.start:
	case <-t.quit:
		return
	}
	if err = s.register(); err == nil {
		q.registered.Add(1)
	}
	t.ready <- err
	if err != nil {
		return
	}
	select {
	case <-t.started:
		s.serve(t.handler)
	case <-t.quit: // closing the ring takes the entry back
	}
}

// all waits for one word of each server. The error is the first one: the others say the same.
func (t *Transport) all() (err error) {
	for range t.servers {
		if e := <-t.ready; err == nil {
			err = e
		}
	}
	return err
}

// Start registers all queues with the connection of a descriptor of /dev/fuse, which becomes the Transport's, and serves them. INIT
// has been answered with FUSE_OVER_IO_URING. Until Start has returned the mount's requests wait. If it fails the kernel sends them by
// /dev/fuse, and nothing is left of the transport: the kernel uses io_uring as soon as each queue has an entry, and does not wait for
// that any more when an entry was refused.
func (t *Transport) Start(fd int, h exchange.Handler) error {
	t.fd, t.handler = fd, h
	t.data, _ = h.(exchange.Data)
	close(t.start)
	err := t.all()
	if !slices.ContainsFunc(t.queues, func(q *queue) bool { return q.registered.Load() == 0 }) {
		if err != nil {
			t.opt.Log.Warn("FUSE over io_uring: there are fewer threads", "error", err)
		}
		close(t.started)
		return nil
	}
	t.Close()
	return because(err)
}

// Close ends what was not started, and waits for it.
func (t *Transport) Close() {
	t.stop.Do(func() { close(t.quit) })
	t.Wait()
}

// Wait returns when the connection has ended, the last request was handled, and all memory is given back.
func (t *Transport) Wait() {
	t.running.Wait()
	t.end.Do(func() {
		if t.idle != nil {
			t.idle.Close()
		}
		if t.fd >= 0 {
			unix.Close(t.fd)
		}
	})
}

// Servers is how many requests of a CPU may be under way.
func (t *Transport) Servers() int { return t.opt.Servers }

// Threads is how many threads there are.
func (t *Transport) Threads() int { return t.servers }

// SchedIdle says how many threads have SCHED_IDLE, how often one got it, and how often one lost it because others kept it from running; nil where
// it is not used, and why not if it was wanted.
func (t *Transport) SchedIdle() (*schedidle.Stats, error) {
	if t.idle == nil {
		return nil, t.noIdle
	}
	s := t.idle.Stats()
	return &s, nil
}

// String says how many queues and threads there are.
func (t *Transport) String() string {
	return fmt.Sprintf("%d queues, %d threads", len(t.queues), t.servers)
}
