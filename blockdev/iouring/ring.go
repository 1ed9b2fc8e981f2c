package iouring

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is an io_uring. One goroutine at a time submits and reaps; Await may be called beside them.
type Ring struct {
	fd    int
	rings []byte // both rings
	sqes  []byte

	// Words that the kernel reads or writes at the same time.
	sqFlags, sqHead, sqTail, cqHead, cqTail *uint32

	sqMask, cqMask uint32
	entries        uint32 // of the submission queue
	entrySize      uint32 // bytes
	completions    []CQE
	limit          *limit // nil: there is none

	tail      uint32 // of the submission queue, as Next has it
	submitted uint32 // as the kernel has it
	head      uint32 // of the completion queue
}

// Options are of New.
type Options struct {
	Entries int           // commands at once, at least 1
	Flags   uint32        // Setup…
	Wide    bool          // submission entries are WideSQEs
	Limit   time.Duration // of Await and EnterKeeping
}

// limit is an argument of io_uring_enter: not on a stack, which moves.
type limit struct {
	arg eventsArg
	ts  unix.Timespec
}

// New makes a ring. Kernels before 6.6, and before 5.18, get a ring without what they lack.
func New(opt Options) (*Ring, error) {
	flags := opt.Flags | setupCQSize
	if opt.Wide {
		flags |= setupSQE128
	}
	var fd uintptr
	var p params
	for _, more := range []uint32{setupSubmitAll | setupNoSQArray, setupSubmitAll, 0} {
		p = params{flags: flags | more, cqEntries: 2 * uint32(opt.Entries)}
		var errno unix.Errno
		fd, _, errno = unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(opt.Entries), uintptr(unsafe.Pointer(&p)), 0)
		if errno == 0 {
			break
		}
		if errno != unix.EINVAL || more == 0 {
			return nil, os.NewSyscallError("io_uring_setup", errno)
		}
	}
	r := &Ring{fd: int(fd), entrySize: uint32(unsafe.Sizeof(SQE{}))}
	if opt.Limit > 0 && p.features&featExtArg != 0 {
		r.limit = &limit{ts: unix.NsecToTimespec(int64(opt.Limit))}
		r.limit.arg.ts = uint64(uintptr(unsafe.Pointer(&r.limit.ts)))
	}
	if opt.Wide {
		r.entrySize = uint32(unsafe.Sizeof(WideSQE{}))
	}
	unix.CloseOnExec(r.fd)
	if p.features&featSingleMmap == 0 || p.features&featNoDrop == 0 {
		r.Close()
		return nil, errors.ErrUnsupported
	}
	var err error
	array := p.flags&setupNoSQArray == 0
	size := max(p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(CQE{})), p.sq.array)
	if array {
		size = max(size, p.sq.array+4*p.sqEntries)
	}
	if r.rings, err = unix.Mmap(r.fd, offSQRing, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		r.Close()
		return nil, os.NewSyscallError("mmap", err)
	}
	if r.sqes, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries*r.entrySize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		r.Close()
		return nil, os.NewSyscallError("mmap", err)
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqFlags = word(p.sq.flags)
	r.sqHead, r.sqTail, r.cqHead, r.cqTail = word(p.sq.head), word(p.sq.tail), word(p.cq.head), word(p.cq.tail)
	r.sqMask, r.cqMask = *word(p.sq.mask), *word(p.cq.mask)
	r.entries = p.sqEntries
	r.completions = unsafe.Slice((*CQE)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	if array { // slot i is entry i, for good
		for i := range p.sqEntries {
			*word(p.sq.array + 4*i) = i
		}
	}
	return r, nil
}

// TaskrunWaits is a word, and the bit in it that is set while the kernel has something for the thread to do before a completion is there, with SetupTaskrunFlag. The
// word goes with Close.
func (r *Ring) TaskrunWaits() (word *uint32, mask uint32) { return r.sqFlags, sqTaskrun }

// Unsubmitted is two words, which differ while the kernel has not carried out what Publish has shown it, as far as that goes at once: it counts up the first. They go with Close.
func (r *Ring) Unsubmitted() (head, tail *uint32) { return r.sqHead, r.sqTail }

// Unreaped is two words, which differ while there are completions that Reap has not taken: it counts up the first. They go with Close.
func (r *Ring) Unreaped() (head, tail *uint32) { return r.cqHead, r.cqTail }

// Publish shows the kernel what Next gave out. Enter does that, too.
func (r *Ring) Publish() {
	// The kernel must see the entries before the tail that covers them: the store releases.
	atomic.StoreUint32(r.sqTail, r.tail)
}

// Close ends the ring. What the kernel has begun goes on.
func (r *Ring) Close() {
	if r.rings != nil {
		unix.Munmap(r.rings)
	}
	if r.sqes != nil {
		unix.Munmap(r.sqes)
	}
	unix.Close(r.fd)
	*r = Ring{fd: -1}
}

// Next is an empty submission entry. There are as many as commands, so one is always free after Enter.
func (r *Ring) Next() *SQE {
	if r.tail-r.submitted == r.entries {
		panic("iouring: more submissions than entries")
	}
	b := r.sqes[(r.tail&r.sqMask)*r.entrySize:][:r.entrySize]
	clear(b)
	r.tail++
	return (*SQE)(unsafe.Pointer(&b[0]))
}

// NextWide is Next of a wide ring.
func (r *Ring) NextWide() *WideSQE { return (*WideSQE)(unsafe.Pointer(r.Next())) }

// Enter submits what Next gave out; wait says to return only when a completion is there.
func (r *Ring) Enter(wait bool) error {
	r.Publish()
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
			if wait && r.tail == r.submitted && r.Ready() {
				return nil
			}
		default:
			return os.NewSyscallError("io_uring_enter", errno)
		}
	}
}

// EnterKeeping is Enter(true) in which the calling thread keeps its Go processor, as if it ran. The Go runtime sends such a thread a signal when it
// needs the processor, and any signal ends the wait; so does Options.Limit, if there is one and the kernel knows limits. A signal may be lost when a debugger lets the thread go, and then the runtime waits
// for the thread and sends no other. So it may return without a completion, and what the kernel took nothing of is left for the next Enter.
func (r *Ring) EnterKeeping() error {
	r.Publish()
	flags, arg, size := uintptr(enterGetEvents), unsafe.Pointer(nil), uintptr(0)
	if r.limit != nil {
		flags, arg, size = flags|enterExtArg, unsafe.Pointer(&r.limit.arg), unsafe.Sizeof(r.limit.arg)
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.tail-r.submitted), 1, flags, uintptr(arg), size)
	switch errno {
	case 0:
		r.submitted += uint32(n)
	case unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ETIME:
	default:
		return os.NewSyscallError("io_uring_enter", errno)
	}
	return nil
}

// Await returns when a completion is there that was not reaped, or after Options.Limit; early if a signal comes, and at once without a limit
// and on a kernel that knows none. It submits nothing.
func (r *Ring) Await() {
	if r.limit == nil {
		return
	}
	_, _, _ = unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 1, enterGetEvents|enterExtArg,
		uintptr(unsafe.Pointer(&r.limit.arg)), unsafe.Sizeof(r.limit.arg))
}

// Ready says whether a completion is there.
func (r *Ring) Ready() bool { return r.head != atomic.LoadUint32(r.cqTail) }

// Peek is the next completion, which must be there.
func (r *Ring) Peek() CQE { return r.completions[r.head&r.cqMask] }

// Reap takes a completion, if there is one.
func (r *Ring) Reap() (c CQE, ok bool) {
	// The completion must be read after the tail that covers it: the load in Ready acquires.
	if !r.Ready() {
		return CQE{}, false
	}
	c = r.Peek()
	r.head++
	// The kernel must not write the slot again before it was read: the store releases.
	atomic.StoreUint32(r.cqHead, r.head)
	return c, true
}
