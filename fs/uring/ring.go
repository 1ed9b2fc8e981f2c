package uring

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is an io_uring of which one thread submits and reaps.
type ring struct {
	fd    int
	rings []byte // both rings
	sqes  []byte

	// Words that the kernel reads or writes at the same time.
	sqTail, cqHead, cqTail *uint32

	sqMask, cqMask uint32
	entries        []sqe
	completions    []cqe

	tail      uint32 // of the submission queue, as next has it
	submitted uint32 // as the kernel has it
	head      uint32 // of the completion queue
}

// newRing makes a ring for n commands at once; it belongs to the calling thread.
//
// It does without IORING_SETUP_DEFER_TASKRUN. With that, a request which the kernel has just given to a thread that is killed stays with
// the ring until the ring's last descriptor is closed; if another thread of the process waits for that very request, in writeback of
// its own mount, the process never ends, and aborting the connection does not help (Linux 6.18).
func newRing(n int) (*ring, error) {
	p := params{
		flags:     setupCQSize | setupSubmitAll | setupSQE128 | setupSingleIssuer | setupCoopTaskrun | setupNoSQArray,
		cqEntries: 2 * uint32(n),
	}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(n), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r := &ring{fd: int(fd)}
	unix.CloseOnExec(r.fd)
	if p.features&featSingleMmap == 0 || p.features&featNoDrop == 0 {
		r.close()
		return nil, errors.ErrUnsupported
	}
	var err error
	size := max(p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(cqe{})), p.sq.array)
	if r.rings, err = unix.Mmap(r.fd, offSQRing, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		r.close()
		return nil, os.NewSyscallError("mmap", err)
	}
	size = p.sqEntries * uint32(unsafe.Sizeof(sqe{}))
	if r.sqes, err = unix.Mmap(r.fd, offSQEs, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		r.close()
		return nil, os.NewSyscallError("mmap", err)
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqTail, r.cqHead, r.cqTail = word(p.sq.tail), word(p.cq.head), word(p.cq.tail)
	r.sqMask, r.cqMask = *word(p.sq.mask), *word(p.cq.mask)
	r.entries = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqes[0])), p.sqEntries)
	r.completions = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	return r, nil
}

func (r *ring) close() {
	if r.rings != nil {
		unix.Munmap(r.rings)
	}
	if r.sqes != nil {
		unix.Munmap(r.sqes)
	}
	unix.Close(r.fd)
	*r = ring{fd: -1}
}

// next is an empty submission entry. There are as many as commands, so one is always free after enter.
func (r *ring) next() *sqe {
	if r.tail-r.submitted == uint32(len(r.entries)) {
		panic("uring: more submissions than entries")
	}
	e := &r.entries[r.tail&r.sqMask]
	*e = sqe{}
	r.tail++
	return e
}

// enter submits what next gave out; wait says to return only when a completion is there.
func (r *ring) enter(wait bool) error {
	// The kernel must see the entries before the tail that covers them: the store releases.
	atomic.StoreUint32(r.sqTail, r.tail)
	for {
		var least, flags uintptr
		if wait {
			least, flags = 1, enterGetEvents
		}
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.tail-r.submitted), least, flags, 0, 0)
		switch errno {
		case 0:
			r.submitted += uint32(n)
			if r.tail == r.submitted {
				return nil
			}
		case unix.EAGAIN, unix.EBUSY: // no memory, for the moment
			time.Sleep(time.Millisecond)
		case unix.EINTR:
			if wait && r.tail == r.submitted && r.ready() {
				return nil
			}
		default:
			return os.NewSyscallError("io_uring_enter", errno)
		}
	}
}

// ready says whether a completion is there.
func (r *ring) ready() bool { return r.head != atomic.LoadUint32(r.cqTail) }

// peek is the next completion, which must be there.
func (r *ring) peek() cqe { return r.completions[r.head&r.cqMask] }

// reap takes a completion, if there is one.
func (r *ring) reap() (c cqe, ok bool) {
	// The completion must be read after the tail that covers it: the load in ready acquires.
	if !r.ready() {
		return cqe{}, false
	}
	c = r.peek()
	r.head++
	// The kernel must not write the slot again before it was read: the store releases.
	atomic.StoreUint32(r.cqHead, r.head)
	return c, true
}
