package share

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// A transfer of a ring:
//
//  1. The leader copies submissions out of the ring, looks up their handles, and cuts them into batches.  takeAll, batches
//  2. A worker carries out a batch: all reads of one file in one call, and all writes. Workers run in parallel. While all have
//     something to do, batches that wait are joined: workers beyond mostBegun begin only when there is a large one for them.  pass
//  3. When a batch has ended its completions are put into the ring. The client is woken if it sleeps.  complete
//
// Waking a worker takes longer than a small read. So the leader carries out a batch by itself if it is the only one in flight. The ring
// has two goroutines, of which one leads at a time; the other sleeps until the client submits more. Of a batch that should end sooner than that one
// would have woken up the leader keeps the lead; if it does not end, for the device does not answer, the watch gives the lead to the other.
//
// A ring takes no more submissions than there is room for completions. A client that reaps nothing delays only itself.

const (
	batchEntries = 64 // of one batch, joined ones have more
	batchBytes   = 1 << 20
	mostEntries  = 256
	mostBytes    = 4 << 20
	maxWorkers   = 64
	// maxAllWorkers is the limit of workers of all rings together, beyond one each. A worker that waits in the kernel occupies a thread,
	// and Go's limit is 10,000 threads.
	maxAllWorkers    = 512
	maxClientWorkers = maxAllWorkers / 4     // of one client
	ringSpin         = 50 * time.Microsecond // how long the leader polls for submissions before it sleeps
	ringPatient      = 200 * time.Microsecond
	patientLeast     = 8                     // processors: of fewer, one that polls is missed elsewhere
	smallBytes       = 64 << 10              // a batch of fewer bytes is small: it takes about as long as the one before it
	quick            = 20 * time.Microsecond // less than the time to wake the thread of another goroutine
)

// ring is a pair of rings of one client. It is a handle.
type ring struct {
	rings  *wire.Rings
	submit *wire.Doorbell // rung by the client after it has submitted
	event  *wire.Event    // signalled to the client after completions
	end    atomic.Bool    // closed, or the client has broken the protocol
	done   sync.WaitGroup // the two goroutines of run

	lead      sync.Mutex   // held by the leader
	called    atomic.Bool  // run was woken while lead was held
	started   atomic.Int32 // number of workers; more of them with lead held only
	waiting   batch        // was taken, and no worker has it; protected by lead
	patient   bool         // the leader polls longer; protected by lead, as slept
	slept     time.Time    // when the leader went to sleep; zero since submissions came
	leader    scratch      // used by carryOutOnly: there is one such batch at a time
	watch     *watch       // takes lead from a leader for which the device does not answer
	lastSmall atomic.Int64 // how long the last small batch took, in ns
	apart     atomic.Bool  // see batch.apart

	mu       sync.Mutex      // protects the daemon's side of the completion ring, and uses
	uses     map[uint32]*use // handles that requests may name, by number
	looked   uint64          // submissions whose handles were looked up; protected by mu, as over
	over     bool            // none is looked up any more
	recent   [2]*use         // the last job's file and memory, which the next one's mostly are; protected by mu
	ended    sync.Cond       // signalled when a batch has ended; with mu
	inFlight atomic.Int64    // submissions taken and not completed

	queue     *queue
	spare     chan []job // memory of batches that have ended
	workers   sync.WaitGroup
	tenant    *tenant      // the client, as who has places
	ending    ends         // Server.ending, conn.gone
	stopWrite func() error // ending.stop
	moved     [2]*moved    // Server.moved, conn.moved
}

// use is a handle and how many requests in flight name it. Submissions name it from the one that was put in first after it was there, up to the last one before its
// release. They are counted as ring.looked does.
type use struct {
	number      uint32
	h           handle
	from, until uint64
	n           int // protected by ring.mu
}

// always is the until of a handle that is not being released.
const always = math.MaxUint64

func (c *conn) ring(q *wire.Ring, _ []gate.Right) result {
	if c.has(ringKind) >= maxRings {
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
	n, err := c.freeNumber()
	if err != nil {
		return fail(err)
	}
	r := newRing(c.tenant, c.ends(), [2]*moved{&c.s.moved, &c.moved})
	theirs, err := r.make(q.Entries)
	if err != nil {
		wire.CloseAll(theirs)
		r.free()
		return fail(err)
	}
	c.add(n, r, cost)
	for range 2 {
		r.done.Go(r.run)
	}
	return result{reply: &wire.RingReply{Handle: n, Entries: q.Entries, Completions: r.rings.Completions(), Size: uint64(wire.RingsSize(q.Entries))},
		rights: append([]int{r.rings.FD}, theirs...), owned: theirs}
}

// newRing is a ring without memory, signals and goroutines.
func newRing(t *tenant, ending ends, m [2]*moved) *ring {
	r := &ring{uses: map[uint32]*use{}, queue: newQueue(), spare: make(chan []job, maxWorkers), tenant: t, ending: ending, stopWrite: ending.stop, moved: m}
	r.ended.L = &r.mu
	r.watch = newWatch(r.leadTaken)
	return r
}

// make makes the rings and their signals. It returns the client's descriptors of the signals.
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
	if r.event, told, err = wire.NewEvent(); err != nil {
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
	if r.event != nil {
		r.event.Close()
	}
}

func (r *ring) kind() kind { return ringKind }

// close returns when all requests that were taken have ended. Workers with nothing to do end before that, and give their places back: whoever leads later passes
// nothing to workers any more.
func (r *ring) close(c *conn) {
	r.stop()
	r.lead.Lock()
	r.queue.end()
	r.lead.Unlock()
	r.lookNoMore()
	r.done.Wait()
	r.workers.Wait()
	c.mu.Lock()
	delete(c.rings, r) // before the memory goes, at which addHandle and removeHandle look
	c.mu.Unlock()
	r.free()
}

// stop ends the ring: no more submissions are taken. Those that were taken are carried out.
func (r *ring) stop() {
	r.end.Store(true)
	r.submit.End() // wakes both goroutines
}

// lookNoMore says that no more handles are looked up: the ring has been stopped, and nobody leads it who has not seen that. What was put in and not taken is never carried out.
func (r *ring) lookNoMore() {
	r.mu.Lock()
	r.over = true
	r.ended.Broadcast()
	r.mu.Unlock()
}

// addHandle and removeHandle keep the ring's view of the connection's handles. A submission that was put in before addHandle does not name the handle, though it may
// have its number, which was another's. One that was put in after removeHandle does not either. Those before are carried out: what removeHandle returns, if that is not nil,
// waits for them, and for those in flight.
//
// The client cannot make that long: it ends with as many submissions as the ring has entries at most, whatever is put in later; those for whose completions there is no
// room until the client takes some are not waited for, and get EBADF.
func (r *ring) addHandle(number uint32, h handle) {
	switch h.(type) {
	case *file, *memory, *mapping:
		r.mu.Lock()
		queued, _ := r.rings.Queued(uint32(r.looked))
		r.uses[number] = &use{number: number, h: h, from: r.looked + uint64(queued), until: always}
		r.mu.Unlock()
	}
}

func (r *ring) removeHandle(number uint32) (wait func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.uses[number]
	if u == nil {
		return nil
	}
	if _, certain := r.rings.Queued(uint32(r.looked)); !r.over {
		u.until = r.looked + uint64(certain)
	}
	if u.until == r.looked || u.until == always {
		r.dropLocked(u)
		if u.n == 0 {
			return nil
		}
	} else {
		r.submit.Wake() // the client may have put them in without a signal
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for u.n > 0 || r.looked < u.until && !r.over {
			r.ended.Wait()
		}
		if r.uses[number] == u {
			r.dropLocked(u)
		}
	}
}

// dropLocked takes a handle's name away.
func (r *ring) dropLocked(u *use) {
	delete(r.uses, u.number)
	r.recent = [2]*use{}
}

// forget removes a handle that no request in flight names. It reports whether there is none.
func (r *ring) forget(number uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.uses[number]
	if u != nil && u.n > 0 {
		return false
	}
	if u != nil {
		r.dropLocked(u)
	}
	return true
}
