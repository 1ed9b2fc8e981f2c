package uring

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Handler answers requests, many at once.
type Handler interface {
	// Handle reads a request from in, a stream of bytes that begins with its fuse_in_header, and writes the answer to out, likewise
	// with a fuse_out_header. It returns how many bytes those are; 0 is answered with EIO. Both are the same memory, but for the
	// operation's own header and an IOCTL's payload: what Handle writes there it writes when it has read what it needs.
	Handle(in, out [][]byte) int
}

// Options of Open.
type Options struct {
	// Servers is how many threads a queue may have, and so how many requests of a CPU may be under way; 0: DefaultServers.
	Servers int
	// Payload is how many bytes a payload buffer has: the most that a request or an answer carries besides its headers. At least
	// the mount's max_write, and its max_pages.
	Payload int
	// Alloc gives the memory of a payload buffer, page-aligned; nil: anonymous memory, which costs what is used of it.
	Alloc func(size int) (memory []byte, free func(), err error)
	// Logf is told what should not happen; nil: nothing is.
	Logf func(format string, args ...any)
}

// DefaultServers is as many requests as go-fuse has under way with 16 MiB of them.
const DefaultServers = 16

// minPayload is FUSE_MIN_READ_BUFFER.
const minPayload = 8192

// Transport is FUSE over io_uring for one connection.
type Transport struct {
	opt     Options
	handler Handler // set before start is closed
	queues  []*queue
	fd      int // of /dev/fuse; likewise
	running sync.WaitGroup
	start   chan struct{} // closed: first servers register
	started chan struct{} // closed: all have, and serve
	quit    chan struct{} // closed: those that do not serve end
	stop    sync.Once
	end     sync.Once
	ready   chan error // of each queue's first server: what came of making it, then of registering it
}

// Open makes a server for each possible CPU. It is called before the mount: what can fail with io_uring itself fails here. The error is
// an Unavailable where there is something to say. Close ends what was not started.
func Open(opt Options) (*Transport, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	if opt.Servers == 0 {
		opt.Servers = DefaultServers
	}
	page := os.Getpagesize()
	opt.Payload = (max(opt.Payload, minPayload) + page - 1) / page * page
	if opt.Alloc == nil {
		opt.Alloc = anonymous
	}
	if opt.Logf == nil {
		opt.Logf = func(string, ...any) {}
	}
	possible, err := cpus("possible")
	if err != nil {
		return nil, err
	}
	online, err := cpus("online")
	if err != nil {
		return nil, err
	}
	t := &Transport{opt: opt, fd: -1, start: make(chan struct{}), started: make(chan struct{}), quit: make(chan struct{}), ready: make(chan error, len(possible))}
	for _, cpu := range possible {
		q := &queue{t: t, cpu: cpu, online: slices.Contains(online, cpu)}
		q.servers.Store(1)
		q.idle.Store(1)
		t.queues = append(t.queues, q)
		t.running.Add(1)
		go t.first(q)
	}
	if err := t.all(); err != nil {
		t.Close()
		return nil, because(err)
	}
	return t, nil
}

// first is the life of a queue's first server.
func (t *Transport) first(q *queue) {
	defer t.running.Done()
	s, err := newServer(q, q.online)
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
	err = s.register()
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

// all waits for one word of each queue's first server.
func (t *Transport) all() (err error) {
	for range t.queues {
		err = errors.Join(err, <-t.ready)
	}
	return err
}

// Start registers all queues with the connection of a descriptor of /dev/fuse, which becomes the Transport's, and serves them. INIT
// has been answered with FUSE_OVER_IO_URING. Until it has returned the mount's requests wait. If it fails the kernel sends them by /dev/fuse, and nothing is left of
// the transport: the kernel uses io_uring only when each queue has an entry, and no longer wants to when one was refused.
func (t *Transport) Start(fd int, h Handler) error {
	t.fd, t.handler = fd, h
	close(t.start)
	if err := t.all(); err != nil {
		t.Close()
		return because(err)
	}
	close(t.started)
	return nil
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
		if t.fd >= 0 {
			unix.Close(t.fd)
		}
	})
}

// Servers is how many threads there are.
func (t *Transport) Servers() (n int) {
	for _, q := range t.queues {
		n += int(q.servers.Load())
	}
	return n
}

// String says how many queues and servers there are.
func (t *Transport) String() string {
	return fmt.Sprintf("%d queues, %d threads", len(t.queues), t.Servers())
}

// anonymous is memory that costs what is used of it.
func anonymous(size int) ([]byte, func(), error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return b, func() { unix.Munmap(b) }, nil
}
