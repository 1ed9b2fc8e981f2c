package share

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
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

// job is a submission whose handles were looked up.
type job struct {
	wire.Submission
	uses [2]*use
	file *fs.External
	mem  *residency.Memory
	err  error
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

// run leads the ring whenever the client has signalled and nobody else does, until the ring ends.
func (r *ring) run() {
	for !r.end.Load() {
		r.called.Store(true)
		if r.lead.TryLock() {
			r.takeAll()
		}
		if r.submit.Wait() != nil {
			return
		}
	}
}

// leave gives the lead up. Who had been called meanwhile and slept on is called again, if there is anything.
func (r *ring) leave() {
	r.lead.Unlock()
	if r.called.Swap(false) && r.pending() {
		r.submit.Rouse()
	}
}

// takeAll takes submissions until there are none for a while, or another leads. The caller holds lead, and not when it returns.
func (r *ring) takeAll() {
	var buf [batchEntries]wire.Submission
	for !r.end.Load() {
		n, err := r.take(buf[:])
		if err != nil {
			r.stop() // the client broke the rules; it sees no completion any more
			break
		}
		if n == 0 {
			if r.more() {
				continue
			}
			break
		}
		all := r.batches(buf[:n])
		if len(all) > 1 || r.flying.Load() > int64(n) {
			for _, b := range all {
				r.give(b)
			}
		} else if !r.alone(all[0]) {
			return
		}
	}
	r.leave()
}

// alone carries out the only batch that is under way. It says whether the caller leads still.
func (r *ring) alone(b []job) bool {
	small := isSmall(b)
	if small && r.lately.Load() < int64(quick) { // whoever comes meanwhile waits no longer than for the other one to wake up
		r.carryOutTimed(b, small)
		r.complete(b, &r.lone)
		return true
	}
	r.rings.DaemonSleeps(true) // the other one hears of what comes
	if r.pending() {
		r.rings.DaemonSleeps(false)
		r.give(b)
		return true
	}
	r.leave()
	r.carryOutTimed(b, small)
	leads := r.lead.TryLock()
	if leads {
		r.rings.DaemonSleeps(false) // before the client can have more
	}
	r.complete(b, &r.lone)
	return leads
}

func (r *ring) carryOutTimed(b []job, small bool) {
	start := time.Now()
	r.carryOut(b, &r.lone)
	if small {
		r.lately.Store(int64(time.Since(start)))
	}
}

// isSmall says whether a batch is a few blocks to read: how long that takes, the one before tells.
func isSmall(b []job) bool {
	bytes := uint64(0)
	for i := range b {
		if b[i].Op != wire.OpRead {
			return false
		}
		bytes += min(b[i].Len, smallBytes+1)
	}
	return bytes <= smallBytes
}

// give hands a batch to a worker.
func (r *ring) give(b []job) {
	select {
	case r.work <- b:
		return
	default:
	}
	if r.started == 0 {
		r.started++
		r.workers.Go(r.worker)
	} else if r.started < maxWorkers {
		select {
		case r.places <- struct{}{}:
			r.started++
			r.workers.Go(r.worker)
		default:
		}
	}
	r.work <- b
}

// take copies submissions out, as many as there is room to answer.
func (r *ring) take(buf []wire.Submission) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	room, err := r.rings.Room()
	if err != nil {
		return 0, err
	}
	n, err := r.rings.Take(buf[:min(len(buf), max(int(room)-int(r.flying.Load()), 0))])
	r.flying.Add(int64(n))
	return n, err
}

// more waits for a while for more; after false the client signals it.
func (r *ring) more() bool {
	for end := time.Now().Add(ringSpin); time.Now().Before(end); {
		if r.pending() {
			return true
		}
	}
	r.rings.DaemonSleeps(true)
	return r.pending()
}

// pending says whether take would find something.
func (r *ring) pending() bool {
	room, err := r.rings.Room()
	return err != nil || r.rings.Submitted() && int(room) > int(r.flying.Load())
}

// batches looks the handles up, and cuts what was taken where a batch is large enough.
func (r *ring) batches(subs []wire.Submission) (all [][]job) {
	var b []job
	bytes := uint64(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range subs {
		j := job{Submission: s}
		j.err = r.resolveLocked(&j)
		if len(b) > 0 && bytes+s.Len > batchBytes {
			all, b, bytes = append(all, b), nil, 0
		}
		b = append(b, j)
		bytes += min(s.Len, batchBytes)
	}
	return append(all, b)
}

// resolveLocked finds what a submission names, and checks that it may.
func (r *ring) resolveLocked(j *job) error {
	f, ok := r.nameLocked(j, j.File).(*file)
	if !ok {
		return unix.EBADF
	}
	j.file = f.ext
	if j.Op == wire.OpSync {
		return nil
	}
	var private bool
	switch m := r.nameLocked(j, j.Memory).(type) {
	case *memory:
		j.mem, private = m.mem, true
	case *mapping:
		j.mem, private = m.hold.Memory(), !m.hold.Shared()
	default:
		return unix.EBADF
	}
	size := uint64(j.mem.Size())
	switch {
	case j.Op != wire.OpRead && j.Op != wire.OpWrite:
		return unix.EOPNOTSUPP
	case j.Op == wire.OpRead && (!f.ext.Readable || !private), j.Op == wire.OpWrite && !f.ext.Writable:
		return unix.EACCES
	case j.MemOff > size || j.Len > size-j.MemOff || j.FileOff > math.MaxInt64/2:
		return unix.EINVAL
	}
	return nil
}

// nameLocked is the handle behind a number, in use until the job has ended.
func (r *ring) nameLocked(j *job, number uint32) handle {
	u := r.uses[number]
	if u == nil {
		return nil
	}
	u.n++
	if j.uses[0] == nil {
		j.uses[0] = u
	} else {
		j.uses[1] = u
	}
	return u.h
}

// worker carries out batches until there are no more.
func (r *ring) worker() {
	var t tools
	for b := range r.work {
		r.carryOut(b, &t)
		r.complete(b, &t)
	}
}

// tools is what carrying out a batch takes, kept for the next one.
type tools struct {
	results   [batchEntries]int64
	transfers []ext4.Transfer
	of        []int // their jobs
}

func (r *ring) carryOut(b []job, t *tools) {
	results := t.results[:len(b)]
	for i := range b {
		j := &b[i]
		switch {
		case j.err != nil:
			results[i] = negative(j.err)
		case j.Op == wire.OpRead && j.Len > piece:
			done, err := fetch(r.ending, j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len))
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
			j.file = nil
		case j.Op == wire.OpRead: // below
		case j.Op == wire.OpWrite:
			done, err := store(r.ending, j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len))
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
		default:
			results[i] = negative(j.file.Sync())
		}
	}
	for i := range b {
		if j := &b[i]; j.err == nil && j.Op == wire.OpRead && j.file != nil {
			t.read(b[i:], results[i:])
		}
	}
}

// complete puts in the completions of a batch that was carried out.
func (r *ring) complete(b []job, t *tools) {
	r.mu.Lock()
	for i := range b {
		r.rings.Complete(wire.Completion{Data: b[i].Data, Result: t.results[i]})
		for _, u := range b[i].uses {
			if u != nil {
				u.n--
			}
		}
	}
	r.ended.Broadcast()
	r.flying.Add(-int64(len(b)))
	r.mu.Unlock()
	if r.rings.WakeClient() {
		r.told.Signal()
	}
}

// read carries out all reads of the first job's file, in one call, and takes the file from those jobs.
func (t *tools) read(b []job, results []int64) {
	f := b[0].file
	t.transfers, t.of = t.transfers[:0], t.of[:0]
	for i := range b {
		if j := &b[i]; j.err == nil && j.Op == wire.OpRead && j.file == f {
			t.transfers = append(t.transfers, ext4.Transfer{Off: int64(j.FileOff), N: int(j.Len), Mem: j.mem, At: int(j.MemOff)})
			t.of, j.file = append(t.of, i), nil
		}
	}
	f.Read(t.transfers)
	for k, i := range t.of {
		if results[i] = int64(t.transfers[k].Done); t.transfers[k].Err != nil {
			results[i] = negative(t.transfers[k].Err)
		}
	}
}

// negative is an error as a completion has it; 0 is none.
func negative(err error) int64 {
	if err == nil {
		return 0
	}
	if errors.Is(err, os.ErrClosed) {
		return -int64(unix.ESHUTDOWN)
	}
	return -int64(fs.Errno(err))
}
