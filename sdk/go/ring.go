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
	closing  atomic.Bool // by Close: then it is not the daemon's doing that no signal comes any more
	slots    chan uint32 // places in flying that are free
	over     chan struct{}
	reaper   sync.WaitGroup
	unwatch  func()

	// reaping is held by who takes completions: the reaper, which sleeps until the daemon signals, or somebody who waits. It comes
	// before mu.
	reaping sync.Mutex
	closed  bool // rings are no more; protected by reaping

	mu     sync.Mutex
	flying []*Request // protected by mu
	failed error      // protected by mu
}

// ringSpin is how long whoever waits looks for completions before it sleeps: longer than it takes to read a few blocks, and to be
// woken.
const ringSpin = 50 * time.Microsecond

// NewRing makes a ring of entries requests in flight, a power of two.
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
		slots: make(chan uint32, entries), over: make(chan struct{}), flying: make([]*Request, entries)}
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

// Start submits requests. It waits while the ring is full. Each request's Wait says how it ended.
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
	r.flying[i] = q
	// There is room: a place is free only when its submission was taken and its completion reaped.
	if n, err := r.rings.Submit([]wire.Submission{sub}); err != nil || n != 1 {
		r.flying[i] = nil
		q.end(0, errors.Join(err, wire.ErrRing))
		return
	}
	if len(r.slots) == 0 && r.rings.WakeDaemon() { // the next one waits for the daemon
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

// look takes completions for a while, until q has ended: to wake the reaper, and by it q's caller, takes longer than a small read.
// It does nothing while another looks.
func (r *Ring) look(q *Request) {
	if !r.reaping.TryLock() {
		return
	}
	defer r.reaping.Unlock()
	if r.closed {
		return
	}
	r.rings.ClientSleeps(false)
	end := time.Now().Add(ringSpin)
	for n := 1; !q.ended() && (n%16 != 0 || time.Now().Before(end)); n++ { // to yield would wake other threads
		if err := r.reapAll(); err != nil {
			r.complete.SetReadDeadline(time.Unix(1, 0)) // the reaper finds it, too
			return
		}
	}
	r.rings.ClientSleeps(true)
	_ = r.reapAll() // what came before; the reaper finds an error
}

// reapAll ends requests whose completions have come. The caller holds reaping.
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

// reap ends requests as their completions come in while nobody looks.
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
	if c.Data < uint64(len(r.flying)) {
		q, r.flying[c.Data] = r.flying[c.Data], nil
	}
	r.mu.Unlock()
	if q == nil {
		return // not one of ours: the daemon is wrong
	}
	r.slots <- uint32(c.Data)
	if c.Result < 0 {
		q.end(0, syscall.Errno(-c.Result))
		return
	}
	q.end(c.Result, nil)
}

// fail ends everything in flight.
func (r *Ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = err
	for i, q := range r.flying {
		if q != nil {
			r.flying[i] = nil
			q.end(0, err)
		}
	}
}

// why is what ended the ring.
func (r *Ring) why() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// Close ends the ring. The daemon finishes what is in flight first; who waits for it gets os.ErrClosed.
func (r *Ring) Close() error {
	r.unwatch()
	r.closing.Store(true)
	err := r.s.release(r.handle)
	r.complete.Close()
	r.reaper.Wait() // and has set failed
	r.reaping.Lock()
	defer r.reaping.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.rings.Close()
	unix.Close(r.submit)
	return err
}
