package uring

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/iouring"
	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/schedidle"
	"github.com/lanefs/lanefs/gpu/thread"
)

// server is a thread with a ring and an entry, which all belong to it.
type server struct {
	thread affinity.Thread
	q      *queue
	ring   *iouring.Ring
	h      *header
	x      exchange.Exchange
	iov    *[2]unix.Iovec // behind the header: the kernel reads it when the entry is registered
	free   []func()
	waits
	program program
	idle    *schedidle.Thread // nil: the thread's policy is left as it is
	unlock  func()            // the thread is nobody's any more
	keep    bool              // the kernel may still use the entry: its memory is left
}

// commands is how many there are at once.
const commands = 1

// newServer makes a server of the calling goroutine, whose thread ends with it: nothing else must run bound to a CPU. It proves that
// the ring works.
func newServer(q *queue) (_ *server, err error) {
	s := &server{q: q, unlock: thread.Lock()}
	s.thread.Begin()
	s.stay()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.ring, err = newRing(commands); err != nil {
		return nil, err
	}
	const headers = int(unsafe.Sizeof(header{}) + unsafe.Sizeof(*s.iov))
	b, free, err := exchange.Anonymous(headers)
	if err != nil {
		return nil, err
	}
	s.free = append(s.free, free)
	s.h = (*header)(unsafe.Pointer(&b[0]))
	s.iov = (*[2]unix.Iovec)(unsafe.Pointer(&b[unsafe.Sizeof(header{})]))
	s.x.Header, s.x.Op = s.h.inOut[:], s.h.opIn[:]
	if s.x.Payload, err = exchange.NewPayload(q.t.opt.Payload, q.t.opt.Alloc); err != nil {
		return nil, err
	}
	s.free = append(s.free, s.x.Payload.Free)
	s.iov[0].Base, s.iov[1].Base = &s.h.inOut[0], &s.x.Payload.Memory[0]
	s.iov[0].SetLen(int(unsafe.Sizeof(header{})))
	s.iov[1].SetLen(len(s.x.Payload.Memory))

	s.ring.Next().Opcode = iouring.OpNop
	if err := s.ring.Enter(true); err != nil {
		return nil, err
	}
	if c, ok := s.ring.Reap(); !ok || c.Res != 0 {
		return nil, fmt.Errorf("io_uring answers a NOP with %d: %w", c.Res, errors.ErrUnsupported)
	}
	if s.bound() {
		s.idle = q.t.idle.Add(&q.sched, s.due())
	}
	return s, nil
}

// due says that somebody waits for the thread: for a request of which the kernel has to tell it, or has told it, or for an answer.
func (s *server) due() (d schedidle.Due) {
	d.Word, d.Mask = s.ring.TaskrunWaits()
	d.Queues[0].Head, d.Queues[0].Tail = s.ring.Unsubmitted()
	d.Queues[1].Head, d.Queues[1].Tail = s.ring.Unreaped()
	d.Bound = &s.thread
	return d
}

func (s *server) close() {
	s.idle.Remove()
	if s.ring != nil {
		s.ring.Close()
	}
	if !s.keep {
		for _, f := range s.free {
			f()
		}
	}
	s.free = nil
	s.unlock()
}

// command prepares a command for /dev/fuse.
func (s *server) command(op uint32, commitID uint64) *iouring.WideSQE {
	c := s.ring.NextWide()
	c.Opcode, c.FD, c.CmdOp = iouring.OpURingCmd, int32(s.q.t.fd), op
	r := (*cmdReq)(unsafe.Pointer(&c.Cmd))
	r.qid, r.commitID = uint16(s.q.cpu), commitID
	return c
}

// register gives the entry to the kernel, which says at once if it does not take it.
func (s *server) register() error {
	c := s.command(cmdRegister, 0)
	c.Addr, c.Len = uint64(uintptr(unsafe.Pointer(s.iov))), uint32(len(s.iov))
	if err := s.ring.Enter(false); err != nil {
		return err
	}
	if s.ring.Ready() {
		if c := s.ring.Peek(); c.Res < 0 {
			return unix.Errno(-c.Res)
		}
	}
	return nil
}

// serve answers requests until the connection ends.
func (s *server) serve(h exchange.Handler) {
	for {
		if !s.ring.Ready() {
			if err := s.wait(); err != nil {
				s.keep = true
				s.q.t.opt.Failed(fmt.Errorf("FUSE over io_uring: a thread of CPU %d: %w", s.q.cpu, err))
				return
			}
			continue
		}
		s.took()
		c, _ := s.ring.Reap()
		if c.Res < 0 {
			if err := unix.Errno(-c.Res); !ended(err) {
				s.q.t.opt.Failed(fmt.Errorf("FUSE over io_uring: an entry of CPU %d: %w", s.q.cpu, err))
			}
			return
		}
		s.q.taken()
		if int(s.q.t.underway.Add(1)) > s.q.t.cpus {
			s.q.t.opt.Crowded()
		}
		s.handle(h)
		s.q.t.underway.Add(-1)
		s.command(cmdCommitAndFetch, s.h.ent.commitID)
		s.ring.Publish()
		s.idle.Answered()
	}
}

// took notes that there is a request.
func (s *server) took() {
	if s.bound() && s.idle.Took(s.x.In().PID) {
		s.thread.Free() // which the guard of SCHED_IDLE has done, who knows of the CPU
	}
}

// ended says whether an error is what the end of a connection looks like. ENOENT: the request was aborted before its answer.
func ended(err error) bool {
	for _, errno := range []unix.Errno{unix.ENOTCONN, unix.ECONNABORTED, unix.ECANCELED, unix.ENOENT, unix.ENODEV} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// handle has the handler answer the request, and says what the kernel reads besides.
func (s *server) handle(h exchange.Handler) {
	if s.x.ReadSize() >= readTogether {
		s.beginLargeRead()
		defer s.endLargeRead()
	} else {
		s.place(s.x.In().PID)
	}
	// The kernel does not say how many bytes the operation's own header has. It says how many all have.
	payload := min(int(s.h.ent.payloadSz), len(s.x.Payload.Memory))
	op := min(max(int(s.x.In().Len)-exchange.InHeaderSize-payload, 0), headerSize)
	n, _ := s.x.Answer(h, s.q.t.data, op, payload)
	s.h.ent.payloadSz = uint32(n)
}
