package devfuse

import (
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/affinity"
	"github.com/lanefs/lanefs/fs/exchange"
	"github.com/lanefs/lanefs/fs/schedidle"
	"github.com/lanefs/lanefs/gpu/thread"
)

// opSize is how many bytes of a request stand between its header and its payload: of a WRITE its own header, whose payload begins a page then.
// Of other requests names and the like begin there.
const opSize = 40

// reader is a thread, and memory that it alone uses.
type reader struct {
	t      *Transport
	unpark chan struct{} // closed: the connection has ended
	x      exchange.Exchange
	pinned bool              // the payload is one of Alloc's
	idle   *schedidle.Thread // nil: the thread's policy is left as it is
	iov    [3]unix.Iovec

	thread affinity.Thread // bound to the program's CPU, or nowhere
}

// newReader makes a reader, which has no thread yet. The caller has the lock, or nobody else knows of t.
func (t *Transport) newReader() (*reader, error) {
	b := make([]byte, exchange.InHeaderSize+opSize)
	r := &reader{t: t, unpark: make(chan struct{}, 1)}
	r.x.Header, r.x.Op = b[:exchange.InHeaderSize], b[exchange.InHeaderSize:]
	if n := len(t.payloads); n > 0 {
		r.x.Payload, t.payloads, r.pinned = t.payloads[n-1], t.payloads[:n-1], true
	} else {
		var err error
		if r.x.Payload, err = exchange.NewPayload(t.opt.Payload, func(int) *exchange.Payload { return nil }); err != nil {
			return nil, err
		}
	}
	t.readers++
	return r, nil
}

// run is the thread's life, which ends with it: nothing else must run bound to a CPU.
func (r *reader) run() {
	t := r.t
	defer t.running.Done()
	defer t.remove(r)
	defer thread.Lock()()
	r.thread.Begin()
	if t.idle != nil {
		r.idle = t.idle.Add(nil, schedidle.Due{FD: int32(t.fd), Relief: &t.relief, Bound: &r.thread})
		defer r.idle.Remove()
	}
	for failures := 0; ; {
		r.idle.Asks()
		n, err := r.take()
		t.waiting.Add(-1)
		switch {
		case over(err):
			t.end()
			return
		case err != nil:
			// ENOENT: a program that was killed takes its request back.
			if failures++; failures > mostFailures {
				t.opt.Failed(fmt.Errorf("/dev/fuse: %w", err))
				t.end()
				return
			}
			t.waiting.Add(1)
			continue
		}
		failures = 0
		r.answer(n)
		if !t.await(r) {
			return
		}
	}
}

var epoch = time.Now()

// mostFailures is how many reads in a row may fail, each for a reason of its own request's.
const mostFailures = 1000

// take reads a request, and returns how many bytes it has.
func (r *reader) take() (int, error) {
	r.vec(0, r.x.Header)
	r.vec(1, r.x.Op)
	r.vec(2, r.x.Payload.Memory)
	n, _, errno := unix.Syscall(unix.SYS_READV, uintptr(r.t.fd), uintptr(unsafe.Pointer(&r.iov)), uintptr(len(r.iov)))
	if errno != 0 {
		return 0, os.NewSyscallError("read", errno)
	}
	if n < exchange.InHeaderSize {
		return 0, unix.EIO
	}
	return int(n), nil
}

func (r *reader) vec(i int, b []byte) {
	r.iov[i].Base = &b[0]
	r.iov[i].SetLen(len(b))
}

// answer has the request of n bytes handled, and answers it.
func (r *reader) answer(n int) {
	t := r.t
	n -= exchange.InHeaderSize
	payload := max(n-opSize, 0)
	took, thread := time.Since(epoch), r.x.In().PID
	q := request{thread: thread, at: took, large: payload >= largeData || r.x.ReadSize() >= largeData, away: took-time.Duration(t.answered.Load()) > awayGap,
		async: r.x.Async()}
	if thread != 0 {
		q.together = t.underway.Add(1) > 1
	}
	if r.bound() && r.idle.Took(thread) { // before all that may take long: the guard looks from now on
		r.leave()
	}
	t.need(r)
	ask := t.program.saw(q)
	if ask && !q.async {
		t.program.ask(r, thread)
		ask = false
	}
	r.place()
	t.need(r) // it may have left the policy
	size, answered := r.x.Answer(t.handler, t.data, n-payload, payload)
	// Before the program can make its next request: it does not find this one under way, and needs no other reader.
	if thread != 0 {
		t.underway.Add(-1)
	}
	t.waiting.Add(1)
	now := time.Since(epoch)
	t.answered.Store(int64(now))
	if now-took > longRequest {
		t.program.long.Add(1)
	}
	if answered {
		r.vec(0, r.x.Header[:exchange.OutHeaderSize])
		r.vec(1, r.x.Payload.Memory)
		r.iov[1].SetLen(size)
		// It does not wait, but for memory.
		_, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(t.fd), uintptr(unsafe.Pointer(&r.iov)), 2)
		switch errno {
		case 0, unix.ENOENT, unix.ENODEV, unix.ECONNABORTED: // the request or the connection was aborted
		default:
			t.opt.Log.Error("/dev/fuse: the kernel does not take an answer", "error", errno)
		}
	}
	if ask {
		t.waiting.Add(-1)
		t.need(r)
		t.program.ask(r, thread)
		t.waiting.Add(1)
		r.place()
	}
	r.idle.Answered()
}
