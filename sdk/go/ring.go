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
	slots    chan uint32 // free indexes of inFlight
	over     chan struct{}
	reaper   sync.WaitGroup
	unwatch  func()

	// reaping is held by the goroutine that takes completions: the reaper, which sleeps until the daemon signals, or a caller of Wait.
	// It is locked before mu.
	reaping sync.Mutex
	closed  bool // the rings are unmapped; protected by reaping

	mu       sync.Mutex
	inFlight []*Request // protected by mu
	failed   error      // protected by mu
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
		return nil, err
	}
	r := &Ring{s: s, handle: q.Handle, submit: rights[1], complete: os.NewFile(uintptr(rights[2]), "completions"),
		slots: make(chan uint32, entries), over: make(chan struct{}), inFlight: make([]*Request, entries)}
	if r.rings, err = wire.NewRings(m, q.Entries); err != nil {
		m.Close()
		wire.CloseAll(rights[1:])
		return nil, err
	}
	for i := range entries {
		r.slots <- uint32(i)
	}
	r.reaper.Go(r.reap)
	r.unwatch = s.gone.then(func() { r.complete.SetReadDeadline(time.Unix(1, 0)) })
	return r, nil
}

// Start submits requests. It waits while the ring is full.
func (r *Ring) Start(reqs ...*Request) {
	for _, q := range reqs {
		q.ring, q.done = r, make(chan struct{})
		select {
		case <-r.over:
			q.end(0, r.why())
		case i := <-r.slots:
			r.put(i, q)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil && r.rings.WakeDaemon() {
		wire.RingDoorbell(r.submit)
	}
}

func (r *Ring) put(i uint32, q *Request) {
	sub := wire.Submission{Data: uint64(i), Op: q.Op, FileOff: uint64(q.Off), MemOff: uint64(q.MemOff), Len: uint64(q.Len)}
	if q.File != nil {
		sub.File = q.File.handle
	}
	switch {
	case q.Memory != nil:
		sub.Memory = q.Memory.handle
	case q.Buffer != nil:
		sub.Memory = q.Buffer.handle
		sub.MemOff += uint64(q.Buffer.off)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil {
		q.end(0, r.failed)
		return
	}
	r.inFlight[i] = q
	// There is room: an index is free only after its submission was taken and its completion reaped.
	if n, err := r.rings.Submit([]wire.Submission{sub}); err != nil || n != 1 {
		r.inFlight[i] = nil
		q.end(0, errors.Join(err, wire.ErrRing))
		return
	}
	if len(r.slots) == 0 && r.rings.WakeDaemon() { // the next request waits for the daemon
		wire.RingDoorbell(r.submit)
	}
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

// spin takes completions for ringSpin, or until q has ended. Waking the reaper, which then wakes the caller, takes longer than a small read.
// It does nothing if another goroutine takes completions.
func (r *Ring) spin(q *Request) {
	if !r.reaping.TryLock() {
		return
	}
	defer r.reaping.Unlock()
	if r.closed {
		return
	}
	r.rings.ClientSleeps(false)
	end := time.Now().Add(ringSpin)
	for n := 1; !q.ended() && (n%16 != 0 || time.Now().Before(end)); n++ { // yielding would wake other threads
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
	var got [64]wire.Completion
	for {
		n, err := r.rings.Reap(got[:])
		if err != nil || n == 0 {
			return err
		}
		for _, c := range got[:n] {
			r.ended(c)
		}
	}
}

// reap takes completions while no caller of Wait does.
func (r *Ring) reap() {
	defer close(r.over)
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

func (r *Ring) ended(c wire.Completion) {
	r.mu.Lock()
	var q *Request
	if c.Data < uint64(len(r.inFlight)) {
		q, r.inFlight[c.Data] = r.inFlight[c.Data], nil
	}
	r.mu.Unlock()
	if q == nil {
		return // no such request: a bug of the daemon
	}
	r.slots <- uint32(c.Data)
	if c.Result < 0 {
		q.end(0, syscall.Errno(-c.Result))
		return
	}
	q.end(c.Result, nil)
}

// fail ends all requests in flight with err.
func (r *Ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	for i, q := range r.inFlight {
		if q != nil {
			r.inFlight[i] = nil
			q.end(0, err)
		}
	}
}

// why returns the error that has ended the ring.
func (r *Ring) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Close ends the ring. The daemon first finishes the requests in flight. Requests without a completion by then end with os.ErrClosed.
func (r *Ring) Close() error {
	r.unwatch()
	r.closing.Store(true)
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
