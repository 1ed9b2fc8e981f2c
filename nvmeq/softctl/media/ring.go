package media

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/iouring"
)

// Ring carries out reads, writes and discards of a block device, many at a time, by an io_uring of its own. Each has a slot:
//
//  1. Start, StartDiscard
//     puts it into the submission ring
//  2. Submit   hands all that were started to the kernel, in one system call
//  3. Await    waits a little for one that has ended; it alone may be called beside the others
//  4. Reap     gives the slot of one that has ended, and its error
//
// From Start to Reap the memory belongs to the kernel.
type Ring struct {
	m        *Image
	ring     *iouring.Ring
	ops      []ringOp // by slot
	inFlight int      // started and not reaped
	file     ringFile
	memory   ringMemory
}

type ringOp struct {
	b       *Buffers
	bounce  []byte // nil: the device takes the memory as it lies
	iov     unix.Iovec
	off     int64
	write   bool
	durable bool
	discard int64 // bytes of a discard; 0: it is none
}

// uringDiscard is BLOCK_URING_CMD_DISCARD (linux/blkdev.h, Linux 6.12): BLKDISCARD that does not wait. Tests replace it.
var uringDiscard uint64 = 0x12 << 8

// StartDiscard begins to discard n bytes at off, more than none, as Image.Discard does. A kernel that cannot do so beside other work does it when
// it is reaped.
func (r *Ring) StartDiscard(slot int, off, n int64) error {
	if err := r.m.present(off, n); err != nil {
		return err
	}
	r.ops[slot] = ringOp{off: off, discard: n}
	e := r.next(slot)
	e.Opcode = iouring.OpURingCmd
	e.Off, e.Addr, e.Addr3 = uringDiscard, uint64(off), uint64(n)
	r.inFlight++
	return nil
}

// discarded is the error of a discard that ended with res. One that was refused is done by a call that waits, whose error counts.
func (r *Ring) discarded(o *ringOp, res int32) error {
	if res >= 0 {
		return nil
	}
	switch err := unix.Errno(-res); err {
	case unix.EOPNOTSUPP, unix.EINVAL, unix.ENOTTY, unix.EAGAIN, unix.EINTR:
		return r.m.Discard(o.off, o.discard)
	default:
		return r.m.refused(o.off, o.discard, err)
	}
}

// AwaitLimit is how long Await waits at most: so long a caller may be kept from what else there is.
const AwaitLimit = time.Millisecond

// newIOURing is replaced by tests.
var newIOURing = iouring.New

// NewRing makes a ring with n slots. The error says why there is none: the image is read and written by calls that wait then.
func (m *Image) NewRing(n int) (*Ring, error) {
	if !m.Direct() {
		return nil, errors.New("it is no block device")
	}
	r, err := newIOURing(iouring.Options{Entries: n, Limit: AwaitLimit})
	switch {
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("io_uring is refused here, by the sysctl kernel.io_uring_disabled or a seccomp filter: %w", err)
	case err != nil:
		return nil, err
	}
	ring := &Ring{m: m, ring: r, ops: make([]ringOp, n)}
	ring.register()
	return ring, nil
}

// Start begins a read or write of b at off. slot must be free. An error means that nothing was begun.
func (r *Ring) Start(slot int, b *Buffers, off int64, write, durable bool) error {
	if err := r.m.gone(off, b.n); err != nil {
		return err
	}
	o := &r.ops[slot]
	*o = ringOp{b: b, off: off, write: write, durable: durable}
	iov, held := b.iov, b.in
	if len(iov) > iovMax || !r.m.direct.takes(b) {
		o.bounce = alignedBytes(b.n)
		if write {
			b.copyOut(o.bounce, 0)
		}
		o.iov = iovec(o.bounce)
		iov, held = unsafe.Slice(&o.iov, 1), 0
	}
	e := r.next(slot)
	e.Off = uint64(off)
	if len(iov) == 1 {
		e.Addr, e.Len = uint64(uintptr(unsafe.Pointer(iov[0].Base))), uint32(iov[0].Len)
	} else {
		e.Addr, e.Len = uint64(uintptr(unsafe.Pointer(&iov[0]))), uint32(len(iov))
	}
	e.Opcode, e.BufIndex = r.memory.operation(len(iov) > 1, write, held)
	if durable {
		e.OpFlags = unix.RWF_DSYNC
	}
	r.inFlight++
	return nil
}

// Submit hands over what was started. An error is the ring's: what was started may have begun or not, and Close waits for it.
func (r *Ring) Submit() error { return r.ring.Enter(false) }

// InFlight is how many were started and not reaped.
func (r *Ring) InFlight() int { return r.inFlight }

// Await returns when one has ended, or after AwaitLimit.
func (r *Ring) Await() { r.ring.Await() }

// Reap gives one that has ended.
func (r *Ring) Reap() (slot int, err error, ok bool) {
	c, ok := r.ring.Reap()
	if !ok {
		return 0, nil, false
	}
	r.inFlight--
	slot = int(c.UserData)
	o := &r.ops[slot]
	if o.discard > 0 {
		err = r.discarded(o, c.Res)
		*o = ringOp{}
		return slot, err, true
	}
	b := o.b
	if o.bounce != nil {
		b = new(Buffers)
		b.Add(o.bounce)
	}
	switch {
	case c.Res == -int32(unix.EAGAIN) || c.Res == -int32(unix.EINTR) || c.Res >= 0 && int64(c.Res) < b.n:
		// What moved in part, or not for the moment, is done again by a call that waits: it is the same bytes.
		flags, trap := 0, uintptr(unix.SYS_PREADV2)
		if o.write {
			trap = unix.SYS_PWRITEV2
		}
		if o.durable {
			flags = unix.RWF_DSYNC
		}
		err = r.m.move(trap, b, o.off, flags)
	case c.Res < 0:
		err = unix.Errno(-c.Res)
	}
	if o.write {
		err = r.m.wrote(o.off, b.n, o.durable, err)
	} else {
		err = r.m.refused(o.off, b.n, err)
	}
	if o.bounce != nil && !o.write && err == nil {
		o.b.copyIn(o.bounce, 0)
	}
	*o = ringOp{}
	return slot, err, true
}

// Close ends the ring when what was started has ended. Await must not be under way.
func (r *Ring) Close() {
	for r.inFlight > 0 {
		if _, _, ok := r.Reap(); ok {
			continue
		}
		if r.ring.Enter(true) != nil {
			return // the kernel may still use the memory of the ring and of its commands: they are left
		}
	}
	r.unregister()
	r.ring.Close()
}
