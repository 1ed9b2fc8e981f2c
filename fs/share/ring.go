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
	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/fs/vram"
)

// The road of a ring's requests:
//
//	1  the ring's goroutine copies submissions out, looks up their handles, and makes batches of what follows one another
//	2  a worker has the batch's reads of a file done in one call, its writes one by one (workers in parallel)
//	3  each request's completion is put in as its batch ends; the client is woken if it sleeps
//
// A ring takes no more submissions than there is room for completions, so a client that reaps nothing waits for itself.

const (
	batchEntries = 64
	batchBytes   = 1 << 20
	maxWorkers   = 64
	ringSpin     = 50 * time.Microsecond // how long the daemon looks for more before it sleeps
)

// ring is a handle.
type ring struct {
	rings  *wire.Rings
	submit *os.File // the daemon's end of the eventfd
	events [2]int   // submitted, completed: closed with the ring
	end    atomic.Bool
	done   sync.WaitGroup // the ring's goroutine

	mu     sync.Mutex      // protects the completion ring's daemon side, and uses
	uses   map[uint32]*use // what requests may name
	ended  sync.Cond       // a batch has; with mu
	flying atomic.Int64    // taken and not completed

	work    chan []job
	workers sync.WaitGroup
}

// use is a handle and how many requests in flight name it.
type use struct {
	h handle
	n int // protected by ring.mu
}

// job is a submission whose handles were looked up.
type job struct {
	wire.Submission
	uses []*use
	file *fs.External
	mem  *vram.Memory
	err  error
}

func (c *conn) ring(q *wire.Ring, _ []int) result {
	if c.count.rings >= maxRings {
		return fail(fmt.Errorf("the connection has %d rings: %w", maxRings, unix.EMFILE))
	}
	if q.Entries == 0 || q.Entries > wire.MaxEntries || q.Entries&(q.Entries-1) != 0 {
		return fail(fmt.Errorf("rings of %d entries: want a power of two up to %d: %w", q.Entries, wire.MaxEntries, unix.EINVAL))
	}
	n, err := c.free()
	if err != nil {
		return fail(err)
	}
	r := &ring{events: [2]int{-1, -1}, uses: map[uint32]*use{}, work: make(chan []job)}
	r.ended.L = &r.mu
	if err := r.make(q.Entries); err != nil {
		r.free()
		return fail(err)
	}
	c.count.rings++
	for number, h := range c.handles {
		r.learn(number, h)
	}
	c.handles[n] = r
	r.done.Go(r.run)
	return result{reply: &wire.RingReply{Handle: n, Entries: q.Entries, Completions: r.rings.Completions(), Size: uint64(wire.RingsSize(q.Entries))},
		rights: []int{r.rings.FD, r.events[0], r.events[1]}}
}

func (r *ring) make(entries uint32) error {
	m, err := wire.NewShared("lanefs-ring", wire.RingsSize(entries), false)
	if err != nil {
		return err
	}
	if r.rings, err = wire.NewRings(m, entries); err != nil {
		m.Close()
		return err
	}
	for i := range r.events {
		if r.events[i], err = wire.NewEvent(); err != nil {
			return err
		}
	}
	fd, err := unix.FcntlInt(uintptr(r.events[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r.submit = os.NewFile(uintptr(fd), "submissions")
	return nil
}

func (r *ring) free() {
	if r.rings != nil {
		r.rings.Close()
	}
	if r.submit != nil {
		r.submit.Close()
	}
	wire.CloseAll(r.events[:])
}

func (r *ring) close(c *conn) {
	if r.end.Swap(true) {
		return
	}
	r.submit.SetReadDeadline(time.Unix(1, 0)) // whoever waits waits no longer
	r.done.Wait()
	r.free()
	c.count.rings--
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

// run takes submissions until the ring ends.
func (r *ring) run() {
	defer r.workers.Wait()
	defer close(r.work)
	started := 0
	var buf [batchEntries]wire.Submission
	for !r.end.Load() {
		n, err := r.take(buf[:])
		if err != nil {
			return // the client broke the rules; it sees no completion any more
		}
		if n == 0 {
			if !r.wait() {
				return
			}
			continue
		}
		for _, b := range r.batches(buf[:n]) {
			select {
			case r.work <- b:
				continue
			default:
			}
			if started < maxWorkers {
				started++
				r.workers.Go(r.worker)
			}
			r.work <- b
		}
	}
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

// wait returns true when there may be more, false at the ring's end.
func (r *ring) wait() bool {
	for end := time.Now().Add(ringSpin); time.Now().Before(end); {
		if r.pending() {
			return true
		}
	}
	r.rings.DaemonSleeps(true)
	if r.pending() {
		return true
	}
	var b [8]byte
	_, err := r.submit.Read(b[:])
	return err == nil && !r.end.Load()
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
	j.uses = append(j.uses, u)
	return u.h
}

// worker carries out batches until there are no more.
func (r *ring) worker() {
	for b := range r.work {
		r.carryOut(b)
	}
}

func (r *ring) carryOut(b []job) {
	results := make([]int64, len(b))
	reads := map[*fs.External][]int{}
	for i := range b {
		j := &b[i]
		switch {
		case j.err != nil:
			results[i] = negative(j.err)
		case j.Op == wire.OpRead:
			reads[j.file] = append(reads[j.file], i)
		case j.Op == wire.OpWrite:
			done, err := store(j.file, j.mem, int64(j.FileOff), int64(j.MemOff), int64(j.Len))
			if results[i] = done; err != nil {
				results[i] = negative(err)
			}
		default:
			results[i] = negative(j.file.Sync())
		}
	}
	for f, list := range reads {
		ts := make([]ext4.Transfer, len(list))
		for k, i := range list {
			ts[k] = ext4.Transfer{Off: int64(b[i].FileOff), N: int(b[i].Len), Mem: b[i].mem, At: int(b[i].MemOff)}
		}
		f.Read(ts)
		for k, i := range list {
			if results[i] = int64(ts[k].Done); ts[k].Err != nil {
				results[i] = negative(ts[k].Err)
			}
		}
	}
	r.mu.Lock()
	for i := range b {
		r.rings.Complete(wire.Completion{Data: b[i].Data, Result: results[i]})
		for _, u := range b[i].uses {
			u.n--
		}
	}
	r.ended.Broadcast()
	r.flying.Add(-int64(len(b)))
	r.mu.Unlock()
	if r.rings.WakeClient() {
		wire.Signal(r.events[1])
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
