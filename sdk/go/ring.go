package lanefs

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// Ring is a submission and a completion queue in memory shared with the daemon. Its methods may be called from any
// goroutine.
type Ring struct {
	s        *Session
	handle   uint32
	rings    *wire.Rings
	submit   int
	complete *os.File
	closing  atomic.Bool // set by Close: the end of the signals is not an end of the daemon
	reaper   sync.WaitGroup
	unwatch  func()

	// reaping is held by the goroutine that takes completions: the reaper, which sleeps until the daemon signals, or a caller of Wait.
	// It is locked before mu.
	reaping sync.Mutex
	closed  bool                // the rings are unmapped; protected by reaping
	got     [64]wire.Completion // protected by reaping

	mu       sync.Mutex // protects all below
	inFlight []*Request
	free     []uint32  // indexes of inFlight
	room     sync.Cond // signalled when there is a free index again, or the ring has failed
	subs     [64]wire.Submission
	failed   error
}

// ringSpin is how long Wait polls for completions before it sleeps: longer than a read of a few blocks and a wake-up take.
const ringSpin = 50 * time.Microsecond

// NewRing makes a ring for up to entries requests in flight, a power of two.
func (s *Session) NewRing(entries int) (*Ring, error) {
	var q wire.RingReply
	rights, err := s.call(wire.TRing, &wire.Ring{Entries: uint32(entries)}, &q, 3, nil)
	if err != nil {
		return nil, err
	}
	defer wire.CloseAll(rights[:1])
	m, err := wire.MapShared(rights[0], int(q.Size), true)
	if err != nil {
		wire.CloseAll(rights[1:])
		return nil, errors.Join(err, s.release(q.Handle))
	}
	r := &Ring{s: s, handle: q.Handle, submit: rights[1], complete: os.NewFile(uintptr(rights[2]), "completions"),
		inFlight: make([]*Request, entries), free: make([]uint32, entries)}
	r.room.L = &r.mu
	if r.rings, err = wire.NewRings(m, q.Entries); err != nil {
		m.Close()
		r.complete.Close()
		wire.CloseAll(rights[1:2])
		return nil, errors.Join(err, s.release(q.Handle))
	}
	for i := range r.free {
		r.free[i] = uint32(i)
	}
	r.reaper.Go(r.reap)
	r.unwatch = s.gone.then(func() { r.complete.SetReadDeadline(time.Unix(1, 0)) })
	return r, nil
}

// Start submits requests. It waits while the ring is full.
func (r *Ring) Start(reqs ...*Request) {
	for _, q := range reqs {
		q.ring, q.wake = r, nil
		atomic.StoreUint32(&q.done, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(reqs) > 0 && r.failed == nil {
		if len(r.free) == 0 {
			r.wakeLocked() // the next request waits for the daemon
			r.mu.Unlock()
			r.spin(r.hasRoom)
			r.mu.Lock()
			for len(r.free) == 0 && r.failed == nil {
				r.room.Wait()
			}
			continue
		}
		n := min(len(reqs), len(r.free), len(r.subs))
		r.putLocked(reqs[:n])
		reqs = reqs[n:]
	}
	for _, q := range reqs {
		q.endLocked(0, r.failed)
	}
	r.wakeLocked()
}

// hasRoom reports whether Start need not wait.
func (r *Ring) hasRoom() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.free) > 0 || r.failed != nil
}

func (r *Ring) wakeLocked() {
	if r.failed == nil && r.rings.WakeDaemon() {
		wire.RingDoorbell(r.submit)
	}
}

// putLocked submits requests, for which there are free indexes.
func (r *Ring) putLocked(reqs []*Request) {
	k := 0
	for _, q := range reqs {
		i := r.free[len(r.free)-1-k]
		sub := &r.subs[k]
		*sub = wire.Submission{Data: uint64(i), Op: q.Op, FileOff: uint64(q.Off), MemOff: uint64(q.MemOff), Len: uint64(q.Len)}
		if err := q.name(sub, r.s); err != nil {
			q.endLocked(0, err)
			continue
		}
		r.inFlight[i] = q
		k++
	}
	// There is room: an index is free only after its submission was taken and its completion reaped.
	n, err := r.rings.Submit(r.subs[:k])
	left := len(r.free) - k
	for _, sub := range r.subs[n:k] {
		q := r.inFlight[sub.Data]
		r.inFlight[sub.Data] = nil
		q.endLocked(0, errors.Join(err, wire.ErrRing))
		r.free[left] = uint32(sub.Data)
		left++
	}
	r.free = r.free[:left]
}

// Do starts the requests, waits for all, and returns the first error.
func (r *Ring) Do(reqs ...*Request) error {
	r.Start(reqs...)
	var first error
	for _, q := range reqs {
		if err := q.Wait(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// spin takes completions for ringSpin, or until enough says so. Waking the reaper, which then wakes the caller, takes longer than a small read.
// It does nothing if another goroutine takes completions.
func (r *Ring) spin(enough func() bool) {
	if !r.reaping.TryLock() {
		return
	}
	defer r.reaping.Unlock()
	if r.closed {
		return
	}
	r.rings.ClientSleeps(false)
	end := time.Now().Add(ringSpin)
	for n := 1; !enough() && (n%16 != 0 || time.Now().Before(end)); n++ { // yielding would wake other threads
		if err := r.reapAll(); err != nil {
			r.complete.SetReadDeadline(time.Unix(1, 0)) // the reaper meets the error, too
			return
		}
	}
	r.rings.ClientSleeps(true)
	_ = r.reapAll() // completions from before ClientSleeps; the reaper meets an error, too
}

// reapAll takes completions and ends their requests. The caller holds reaping.
func (r *Ring) reapAll() error {
	for {
		n, err := r.rings.Reap(r.got[:])
		if err != nil || n == 0 {
			return err
		}
		r.mu.Lock()
		for _, c := range r.got[:n] {
			r.endedLocked(c)
		}
		r.room.Broadcast()
		r.mu.Unlock()
	}
}

// reap takes completions while no caller of Wait does.
func (r *Ring) reap() {
	raw, err := r.complete.SyscallConn()
	for {
		if err != nil {
			r.fail(err)
			return
		}
		r.reaping.Lock()
		r.rings.ClientSleeps(true)
		err = r.reapAll()
		r.reaping.Unlock()
		if err != nil {
			r.fail(err)
			return
		}
		if err := wire.WaitEvent(raw); err != nil {
			r.reaping.Lock()
			last := r.reapAll()
			r.reaping.Unlock()
			switch {
			case last != nil:
				r.fail(last)
			case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF) && !r.closing.Load():
				r.fail(ErrGone)
			default:
				r.fail(os.ErrClosed)
			}
			return
		}
	}
}

func (r *Ring) endedLocked(c wire.Completion) {
	if c.Data >= uint64(len(r.inFlight)) || r.inFlight[c.Data] == nil {
		return // no such request: a bug of the daemon
	}
	q := r.inFlight[c.Data]
	r.inFlight[c.Data] = nil
	r.free = append(r.free, uint32(c.Data))
	if c.Result < 0 {
		q.endLocked(0, syscall.Errno(-c.Result))
		return
	}
	q.endLocked(c.Result, nil)
}

// fail ends all requests in flight with err.
func (r *Ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	for i, q := range r.inFlight {
		if q != nil {
			r.inFlight[i] = nil
			q.endLocked(0, err)
		}
	}
	r.room.Broadcast()
}

// Close ends the ring. The daemon first finishes the requests in flight. Requests without a completion by then end with os.ErrClosed.
func (r *Ring) Close() error {
	if r.closing.Swap(true) {
		return os.ErrClosed
	}
	r.unwatch()
	err := r.s.release(r.handle)
	r.complete.Close()
	r.reaper.Wait() // it has set failed then
	r.reaping.Lock()
	defer r.reaping.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.rings.Close()
	unix.Close(r.submit)
	return err
}
