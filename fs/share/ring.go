package share

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// The road of a ring's requests:
//
//	1  the ring's leader copies submissions out, looks up their handles, and makes batches of what follows one another
//	2  a worker has the batch's reads of a file done in one call, its writes one by one (workers in parallel)
//	3  each request's completion is put in as its batch ends; the client is woken if it sleeps
//
// To wake a worker takes longer than a small read, so the leader carries out a batch by itself that is the only one under way. The
// ring has two goroutines that may lead: the other sleeps until the client has more meanwhile.
//
// A ring takes no more submissions than there is room for completions, so a client that reaps nothing waits for itself.

const (
	batchEntries = 64
	batchBytes   = 1 << 20
	maxWorkers   = 64
	// maxAllWorkers is how many all rings together have, beyond one each: a worker that waits in the kernel takes a thread, of which Go
	// gives up at 10,000.
	maxAllWorkers = 512
	ringSpin      = 50 * time.Microsecond // how long the daemon looks for more before it sleeps
	smallBytes    = 64 << 10              // of a batch that takes about as long as the one before it
	quick         = 20 * time.Microsecond // less than it takes to wake another goroutine's thread
)

// ring is a handle.
type ring struct {
	rings  *wire.Rings
	submit *wire.Doorbell // the client has submitted
	told   *wire.Event    // something is complete
	end    atomic.Bool    // closed, or the client broke the rules
	done   sync.WaitGroup // those who may lead

	lead    sync.Mutex   // held by who takes submissions
	called  atomic.Bool  // the other one woke up while it was held
	started int          // workers; protected by lead
	lone    tools        // of who carries out a batch alone: there is one such batch at a time
	lately  atomic.Int64 // how long a small one took, in ns

	mu     sync.Mutex      // protects the completion ring's daemon side, and uses
	uses   map[uint32]*use // what requests may name
	ended  sync.Cond       // a batch has; with mu
	flying atomic.Int64    // taken and not completed

	work    chan []job
	workers sync.WaitGroup
	places  chan struct{} // the server's, of workers beyond the first
	ending  *atomic.Bool  // the server's
}

// use is a handle and how many requests in flight name it.
type use struct {
	h handle
	n int // protected by ring.mu
}

func (c *conn) ring(q *wire.Ring, _ []gate.Right) result {
	if c.count.rings >= maxRings {
		return fail(fmt.Errorf("the connection has %d rings: %w", maxRings, unix.EMFILE))
	}
	if q.Entries == 0 || q.Entries > wire.MaxEntries || q.Entries&(q.Entries-1) != 0 {
		return fail(fmt.Errorf("rings of %d entries: want a power of two up to %d: %w", q.Entries, wire.MaxEntries, unix.EINVAL))
	}
	cost, err := c.charge(Usage{Rings: 1, Descriptors: 3, Shared: int64(wire.RingsSize(q.Entries))})
	if err != nil {
		return fail(err)
	}
	defer cost.end()
	n, err := c.free()
	if err != nil {
		return fail(err)
	}
	r := &ring{uses: map[uint32]*use{}, work: make(chan []job), places: c.s.workers, ending: &c.s.ending}
	r.ended.L = &r.mu
	theirs, err := r.make(q.Entries)
	if err != nil {
		wire.CloseAll(theirs)
		r.free()
		return fail(err)
	}
	c.count.rings++
	for number, h := range c.handles {
		r.learn(number, h)
	}
	c.add(n, r, cost)
	c.rings[r] = true
	for range 2 {
		r.done.Go(r.run)
	}
	return result{reply: &wire.RingReply{Handle: n, Entries: q.Entries, Completions: r.rings.Completions(), Size: uint64(wire.RingsSize(q.Entries))},
		rights: append([]int{r.rings.FD}, theirs...), owned: theirs}
}

// make gives what is the client's of the signals.
func (r *ring) make(entries uint32) (theirs []int, err error) {
	m, err := wire.NewShared("lanefs-ring", wire.RingsSize(entries), false)
	if err != nil {
		return nil, err
	}
	if r.rings, err = wire.NewRings(m, entries); err != nil {
		m.Close()
		return nil, err
	}
	var bell, told int
	if r.submit, bell, err = wire.NewDoorbell(); err != nil {
		return nil, err
	}
	if r.told, told, err = wire.NewEvent(); err != nil {
		return []int{bell}, err
	}
	return []int{bell, told}, nil
}

func (r *ring) free() {
	if r.rings != nil {
		r.rings.Close()
	}
	if r.submit != nil {
		r.submit.Close()
	}
	if r.told != nil {
		r.told.Close()
	}
}

func (r *ring) close(c *conn) {
	r.stop()
	r.done.Wait()
	close(r.work)
	r.workers.Wait()
	for range max(r.started-1, 0) {
		<-r.places
	}
	r.free()
	c.count.rings--
	delete(c.rings, r)
}

// stop ends the ring: nothing is taken any more.
func (r *ring) stop() {
	r.end.Store(true)
	r.submit.End() // whoever sleeps is awake
}

// learn and forget keep the ring's view of the connection's handles. Requests in flight that name a handle have ended when
// forget returns.
func (r *ring) learn(number uint32, h handle) {
	switch h.(type) {
	case *file, *memory, *mapping:
		r.mu.Lock()
		r.uses[number] = &use{h: h}
		r.mu.Unlock()
	}
}

func (r *ring) forget(number uint32) {
	r.mu.Lock()
	u := r.uses[number]
	delete(r.uses, number)
	for u != nil && u.n > 0 {
		r.ended.Wait()
	}
	r.mu.Unlock()
}
