package uring

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// server is a thread with a ring. All but its channels belongs to the thread, and the entries to what doc.go says.
type server struct {
	t       *Transport
	cpu     int
	queues  []uint16 // the CPU's own first
	start   chan Handler
	ready   chan error
	ring    *ring
	entries []entry
	busy    sync.WaitGroup // goroutines that handle requests
	headers []byte
	free    []func()
}

// entry is room for one request.
type entry struct {
	qid     uint16
	h       *header
	payload []byte
	iov     *[2]unix.Iovec // beside the header: the kernel reads it when the entry is registered
	in      [3][]byte      // of the request: its header, the operation's, its payload
	out     [2][]byte
}

// spareEntries are those of a queue whose CPU is offline: it may come online.
const spareEntries = 2

// The user data of completions: an entry's number, and whether it is a message that its answer is there.
const answered = 1 << 32

// headerStride is what an entry takes of the headers: struct fuse_uring_req_header and the two iovecs.
const headerStride = (unsafe.Sizeof(header{}) + 2*unsafe.Sizeof(unix.Iovec{}) + 63) / 64 * 64

// run is the thread's life. It tells made of its ring, waits to be started, tells ready whether its queues are registered, and
// serves until the connection ends.
func (s *server) run(made chan<- error) {
	defer s.t.running.Done()
	// The thread ends with the goroutine: nothing else must run bound to a CPU.
	runtime.LockOSThread()
	bind(s.cpu)
	err := s.open()
	defer s.close()
	made <- err
	if err != nil {
		return
	}
	var h Handler
	select {
	case h = <-s.start:
	case <-s.t.quit:
		return
	}
	live, err := s.register()
	s.ready <- err
	if err != nil {
		return // closing the ring takes back what was registered
	}
	s.serve(h, live)
}

// open makes the ring and the entries' memory, and proves that the ring works.
func (s *server) open() error {
	n := s.t.opt.Entries + spareEntries*(len(s.queues)-1)
	var err error
	if s.ring, err = newRing(n); err != nil {
		return err
	}
	var free func()
	if s.headers, free, err = anonymous(n * int(headerStride)); err != nil {
		return err
	}
	s.free = append(s.free, free)
	payload := s.t.opt.Payload
	buffers, free, err := s.t.opt.Alloc(n * payload)
	if err != nil {
		return err
	}
	s.free = append(s.free, free)
	s.entries = make([]entry, n)
	for i := range s.entries {
		e := &s.entries[i]
		e.qid = s.queues[0]
		if spare := i - s.t.opt.Entries; spare >= 0 {
			e.qid = s.queues[1+spare/spareEntries]
		}
		at := uintptr(i) * headerStride
		e.h = (*header)(unsafe.Pointer(&s.headers[at]))
		e.iov = (*[2]unix.Iovec)(unsafe.Pointer(&s.headers[at+unsafe.Sizeof(header{})]))
		e.payload = buffers[i*payload : (i+1)*payload : (i+1)*payload]
		e.iov[0].Base, e.iov[1].Base = &e.h.inOut[0], &e.payload[0]
		e.iov[0].SetLen(int(unsafe.Sizeof(header{})))
		e.iov[1].SetLen(payload)
	}
	*s.ring.next() = sqe{opcode: opNop, userData: answered}
	if err := s.ring.enter(true); err != nil {
		return err
	}
	if c, ok := s.ring.reap(); !ok || c.res != 0 || c.userData != answered {
		return fmt.Errorf("io_uring answers a NOP with %d: %w", c.res, errors.ErrUnsupported)
	}
	return nil
}

func (s *server) close() {
	s.busy.Wait()
	if s.ring != nil {
		s.ring.close()
	}
	for _, f := range s.free {
		f()
	}
	s.free, s.entries = nil, nil
}

// command submits a command for an entry to /dev/fuse.
func (s *server) command(i int, op uint32, commitID uint64) *sqe {
	c := s.ring.next()
	c.opcode, c.fd, c.cmdOp, c.userData = opURing, int32(s.t.fd), op, uint64(i)
	r := (*cmdReq)(unsafe.Pointer(&c.cmd))
	r.qid, r.commitID = s.entries[i].qid, commitID
	return c
}

// register gives the entries to the kernel. An entry that is refused is told by its completion, at once. A queue with an entry works,
// and without a queue for each CPU the kernel does not use any: so only a queue without an entry is an error.
func (s *server) register() (live int, err error) {
	for i := range s.entries {
		c := s.command(i, cmdRegister, 0)
		c.addr, c.len = uint64(uintptr(unsafe.Pointer(s.entries[i].iov))), uint32(len(s.entries[i].iov))
	}
	if err := s.ring.enter(false); err != nil {
		return 0, err
	}
	have := map[uint16]int{}
	for i := range s.entries {
		have[s.entries[i].qid]++
	}
	live = len(s.entries)
	for s.ring.ready() {
		c := s.ring.completions[s.ring.head&s.ring.cqMask]
		if c.res >= 0 {
			break // the first request
		}
		s.ring.reap()
		live--
		qid := s.entries[c.userData].qid
		if have[qid]--; have[qid] == 0 {
			return 0, fmt.Errorf("queue %d: %w", qid, unix.Errno(-c.res))
		}
	}
	return live, nil
}

// serve answers requests until the kernel has given back the last of the live entries.
func (s *server) serve(h Handler, live int) {
	for live > 0 {
		c, ok := s.ring.reap()
		if !ok {
			if err := s.ring.enter(true); err != nil {
				s.t.opt.Logf("FUSE over io_uring: the queue of CPU %d ends: %v", s.cpu, err)
				return
			}
			continue
		}
		i := int(uint32(c.userData))
		e := &s.entries[i]
		switch {
		case c.userData&answered != 0:
			s.command(i, cmdCommitAndFetch, e.h.ent.commitID)
		case c.res < 0:
			live--
			if errno := unix.Errno(-c.res); !ended(errno) {
				s.t.opt.Logf("FUSE over io_uring: an entry of CPU %d's queue ends: %v", e.qid, errno)
			}
			continue
		case h.Inline(e.request()):
			e.handle(h)
			s.command(i, cmdCommitAndFetch, e.h.ent.commitID)
		default:
			s.busy.Add(1)
			go s.handleElsewhere(h, i, s.ring.fd)
			continue
		}
		if s.ring.ready() { // an answer does not wait for the next request's
			if err := s.ring.enter(false); err != nil {
				s.t.opt.Logf("FUSE over io_uring: the queue of CPU %d ends: %v", s.cpu, err)
				return
			}
		}
	}
}

// ended says whether an entry's error is what the end of a connection looks like. ENOENT: the request was aborted before its answer.
func ended(errno unix.Errno) bool {
	return errno == unix.ENOTCONN || errno == unix.ECONNABORTED || errno == unix.ECANCELED || errno == unix.ENOENT || errno == unix.ENODEV
}

// handleElsewhere handles a request on a goroutine of its own, and tells the server's thread.
func (s *server) handleElsewhere(h Handler, i, ring int) {
	defer s.busy.Done()
	s.entries[i].handle(h)
	if err := send(ring, answered|uint64(i)); err != nil {
		s.t.opt.Logf("FUSE over io_uring: an answer of CPU %d's queue is lost: %v", s.cpu, err)
	}
}

// inHeader is the request's header, and outHeader the answer's in the same place.
func (e *entry) inHeader() *inHeader   { return (*inHeader)(unsafe.Pointer(&e.h.inOut)) }
func (e *entry) outHeader() *outHeader { return (*outHeader)(unsafe.Pointer(&e.h.inOut)) }

// opSize is how many bytes the operation's own header has. The kernel does not say; it says how many all have.
func (e *entry) opSize() int {
	n := int(e.inHeader().len) - inHeaderSize - int(e.h.ent.payloadSz)
	return min(max(n, 0), headerSize)
}

func (e *entry) request() (opcode uint32, nodeID uint64, opIn []byte) {
	h := e.inHeader()
	return h.opcode, h.nodeID, e.h.opIn[:e.opSize()]
}

// opIoctl is FUSE_IOCTL, the one operation that may read and write payload at the same time.
const opIoctl = 39

// handle has the handler answer, and fills in what the kernel reads besides.
func (e *entry) handle(h Handler) {
	in := e.inHeader()
	unique := in.unique
	e.in = [3][]byte{e.h.inOut[:inHeaderSize], e.h.opIn[:e.opSize()], e.payload[:min(int(e.h.ent.payloadSz), len(e.payload))]}
	e.out = [2][]byte{e.h.inOut[:outHeaderSize], e.payload}
	if in.opcode == opIoctl {
		e.in[2] = append([]byte(nil), e.in[2]...)
	}
	n := h.Handle(e.in[:], e.out[:])
	out := e.outHeader()
	if n < outHeaderSize || out.unique != unique {
		*out = outHeader{len: outHeaderSize, error: -int32(unix.EIO), unique: unique}
		n = outHeaderSize
	}
	e.h.ent.payloadSz = uint32(n - outHeaderSize)
}
