package lanefs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
	"github.com/lanefs/lanefs/gpu"
)

// Memory is the program's own, which the daemon has imported.
type Memory struct {
	s      *Session
	handle uint32
}

// Register has the daemon import memory, so that rings can name it: a memfd with the host runtime, a handle of the GPU's
// virtual memory with a GPU. The descriptor stays the caller's.
func (s *Session) Register(e gpu.Export) (*Memory, error) {
	var r wire.RegisterReply
	if _, err := s.callWith(wire.TRegister, &wire.Register{Kind: uint32(e.Kind), FDOff: uint64(e.Offset), Size: uint64(e.Size)}, &r, 0, e.FD); err != nil {
		return nil, err
	}
	return &Memory{s, r.Handle}, nil
}

// Close has the daemon forget the memory, after requests that name it.
func (m *Memory) Close() error { return m.s.release(m.handle) }

// File is a file that rings can name. How it was opened says what may be done with it.
type File struct {
	s      *Session
	handle uint32
}

// Open lets rings name f, which may be closed afterwards.
func (s *Session) Open(f *os.File) (*File, error) {
	var r wire.OpenReply
	if _, err := s.call(wire.TOpen, &wire.Open{}, &r, 0, f); err != nil {
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	return &File{s, r.Handle}, nil
}

// Close has the daemon forget the file, after requests that name it.
func (f *File) Close() error { return f.s.release(f.handle) }

// Request is one transfer of a Ring: between Len bytes of File at Off and Memory, or Buffer, at MemOff.
type Request struct {
	Op     Op // OpRead, OpWrite, OpSync
	File   *File
	Memory *Memory
	Buffer *Buffer // instead of Memory
	Off    int64
	MemOff int64
	Len    int64

	N   int64 // bytes moved; of a read, fewer at the end of the file
	Err error

	done chan struct{}
}

// Op is what a Request does.
type Op = wire.Op

const (
	OpRead  = wire.OpRead  // file → memory
	OpWrite = wire.OpWrite // memory → file
	OpSync  = wire.OpSync  // make the file durable
)

// Ring is a submission and a completion queue in memory shared with the daemon. Its methods may be called from any
// goroutine.
type Ring struct {
	s        *Session
	handle   uint32
	rings    *wire.Rings
	submit   int
	complete *os.File
	slots    chan uint32 // places in flying that are free
	over     chan struct{}
	reaper   sync.WaitGroup
	unwatch  func()

	mu     sync.Mutex
	flying []*Request // protected by mu
	failed error      // protected by mu
}

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
		q.done = make(chan struct{})
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
		wire.Signal(r.submit)
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
		wire.Signal(r.submit)
	}
}

// Wait returns when the request has ended, with its error.
func (q *Request) Wait() error {
	<-q.done
	return q.Err
}

func (q *Request) end(n int64, err error) {
	q.N, q.Err = n, err
	close(q.done)
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

// reap ends requests as their completions come in.
func (r *Ring) reap() {
	defer close(r.over)
	var got [64]wire.Completion
	var b [8]byte
	for {
		n, err := r.rings.Reap(got[:])
		if err != nil {
			r.fail(err)
			return
		}
		for _, c := range got[:n] {
			r.ended(c)
		}
		if n > 0 {
			continue
		}
		r.rings.ClientSleeps(true)
		if n, err = r.rings.Reap(got[:1]); err == nil && n > 0 {
			r.ended(got[0])
			continue
		}
		if _, err := r.complete.Read(b[:]); err != nil {
			r.failAfterLast(err)
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

// failAfterLast ends what is in flight when no more completions come, but for those that came.
func (r *Ring) failAfterLast(why error) {
	var got [1]wire.Completion
	for {
		if n, err := r.rings.Reap(got[:]); err != nil || n == 0 {
			break
		}
		r.ended(got[0])
	}
	if errors.Is(why, os.ErrDeadlineExceeded) {
		r.fail(ErrGone)
		return
	}
	r.fail(os.ErrClosed)
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
	err := r.s.release(r.handle)
	r.complete.Close()
	r.reaper.Wait() // and has set failed
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rings.Close()
	unix.Close(r.submit)
	return err
}
