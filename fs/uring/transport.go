package uring

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Handler answers requests, many at once.
type Handler interface {
	// Inline says whether the queue's own thread may handle a request. It must not if that waits for other requests of the mount,
	// directly or by a lock, for these may be in the same queue; and should not if it waits for a device. opIn is the operation's
	// own header.
	Inline(opcode uint32, nodeID uint64, opIn []byte) bool
	// Handle reads a request from in, a stream of bytes that begins with its fuse_in_header, and writes the answer to out, likewise
	// with a fuse_out_header. It returns how many bytes those are; 0 is answered with EIO. Both may be the same memory from the
	// payload on: what Handle writes there it writes when it has read what it needs.
	Handle(in, out [][]byte) int
}

// Options of Open.
type Options struct {
	Entries int // of each queue: requests of a CPU that are under way; 0: DefaultEntries
	// Payload is how many bytes a payload buffer has: the most that a request or an answer carries besides its headers. At least
	// the mount's max_write, and its max_pages.
	Payload int
	// Alloc gives the memory of the payload buffers, page-aligned; nil: anonymous memory, which costs what is used of it.
	Alloc func(size int) (memory []byte, free func(), err error)
	// Logf hears of what should not happen; nil: nothing does.
	Logf func(format string, args ...any)
}

// DefaultEntries is enough for a CPU's readers and a stream of read-ahead.
const DefaultEntries = 8

// minPayload is FUSE_MIN_READ_BUFFER.
const minPayload = 8192

// Transport is FUSE over io_uring for one connection.
type Transport struct {
	opt     Options
	handler Handler
	servers []*server
	queues  int
	fd      int // of /dev/fuse, our own
	running sync.WaitGroup
	stop    sync.Once
	quit    chan struct{} // closed: servers that were not started end
}

// Open makes the rings and their threads, one for each CPU that is online. It is called before the mount: what can fail with
// io_uring itself fails here. The error is an Unavailable where there is something to say. Close ends what was not started.
func Open(opt Options) (*Transport, error) {
	if err := Check(); err != nil {
		return nil, err
	}
	if opt.Entries == 0 {
		opt.Entries = DefaultEntries
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
	t := &Transport{opt: opt, fd: -1, quit: make(chan struct{}), queues: len(possible)}
	for _, s := range share(possible, online) {
		s.t = t
		t.servers = append(t.servers, s)
	}
	made := make(chan error, len(t.servers))
	for _, s := range t.servers {
		t.running.Add(1)
		go s.run(made)
	}
	for range t.servers {
		err = errors.Join(err, <-made)
	}
	if err != nil {
		t.Close()
		return nil, because(err)
	}
	return t, nil
}

// share gives each online CPU a server, with the CPU's queue and its share of those of CPUs that are offline, whose threads
// could not be bound.
func share(possible, online []int) (servers []*server) {
	at := map[int]*server{}
	for _, cpu := range online {
		s := &server{cpu: cpu, queues: []uint16{uint16(cpu)}, start: make(chan Handler), ready: make(chan error, 1)}
		servers = append(servers, s)
		at[cpu] = s
	}
	for i, cpu := range possible {
		if at[cpu] == nil {
			s := servers[i%len(servers)]
			s.queues = append(s.queues, uint16(cpu))
		}
	}
	return servers
}

// Start registers all queues with the connection of a descriptor of /dev/fuse, whose INIT was answered with FUSE_OVER_IO_URING, and
// serves them. Until it has returned the mount's requests wait. After an error, the kernel sends them by /dev/fuse.
func (t *Transport) Start(fd int, h Handler) error {
	var err error
	if t.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		t.fd = -1
		t.Close()
		return os.NewSyscallError("dup", err)
	}
	for _, s := range t.servers {
		s.start <- h
	}
	err = nil
	for _, s := range t.servers {
		err = errors.Join(err, <-s.ready)
	}
	if err != nil {
		t.Close()
		return because(err)
	}
	return nil
}

// Close ends servers that were not started, or whose registration failed, and waits for all.
func (t *Transport) Close() {
	t.stop.Do(func() { close(t.quit) })
	t.Wait()
}

// Wait returns when the connection has ended, the last request was handled, and all memory is given back.
func (t *Transport) Wait() {
	t.running.Wait()
	if t.fd >= 0 {
		unix.Close(t.fd)
		t.fd = -1
	}
}

// String says how many queues and servers there are.
func (t *Transport) String() string {
	return fmt.Sprintf("%d queues of %d entries, %d threads", t.queues, t.opt.Entries, len(t.servers))
}

// anonymous is memory that costs what is used of it.
func anonymous(size int) ([]byte, func(), error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return b, func() { unix.Munmap(b) }, nil
}
