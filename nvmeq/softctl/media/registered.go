package media

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/iouring"
)

// A ring has the image's descriptor, and memory that is used again and again, registered with the kernel: it need not look up the one, and pin the
// pages of the other, for each command. Where the kernel refuses one of them commands name descriptor and address as ever.

// ringFile says whether the image's descriptor is registered.
type ringFile bool

// ringMemory is what is registered of memory.
type ringMemory struct {
	free    []int // places
	vectors bool  // the kernel takes several runs of a registered buffer (Linux 6.15)
	refused error // why there are no places
}

// heldMost is how many runs of memory a ring holds at most: the pool's, of 1 GiB, has not more chunks.
const heldMost = 512

// ErrHeldNoMore is the error of Hold when all places are taken, or memory is larger than what can be registered.
var ErrHeldNoMore = errors.New("no more memory is registered with this io_uring")

// makeBuffers and setBuffer are replaced by tests.
var (
	makeBuffers  = (*iouring.Ring).MakeBuffers
	setBuffer    = (*iouring.Ring).SetBuffer
	registerFile = (*iouring.Ring).RegisterFile
)

// register registers the descriptor, and makes places for memory.
func (r *Ring) register() {
	r.file = registerFile(r.ring, r.m.fd) == nil
	if r.memory.refused = makeBuffers(r.ring, heldMost); r.memory.refused != nil {
		return
	}
	for i := heldMost; i > 0; i-- {
		r.memory.free = append(r.memory.free, i)
	}
	r.memory.vectors = r.ring.Knows(iouring.OpReadvFixed) && r.ring.Knows(iouring.OpWritevFixed)
}

// unregister lets go of all. No command is under way. The descriptor's claim on the device must not outlive the image, and the kernel ends a
// ring that was closed some time later.
func (r *Ring) unregister() {
	if r.file {
		_ = r.ring.UnregisterFile()
	}
	if r.memory.refused == nil {
		_ = r.ring.UnregisterBuffers()
	}
}

// Hold pins memory until Drop, or Close, and gives it a number for Buffers.In. Its pages must stay what they are until then. The error says why the
// kernel does not: the memory can be used as before.
func (r *Ring) Hold(p []byte) (int, error) {
	m := &r.memory
	if m.refused != nil {
		return 0, m.refused
	}
	if len(m.free) == 0 || len(p) > iouring.MaxBuffer {
		return 0, ErrHeldNoMore
	}
	at := m.free[len(m.free)-1]
	if err := setBuffer(r.ring, at-1, p); err != nil {
		if errors.Is(err, unix.ENOMEM) {
			err = fmt.Errorf("no more memory may be pinned, see ulimit -l: %w", err)
		}
		return 0, err
	}
	m.free = m.free[:len(m.free)-1]
	return at, nil
}

// Drop unpins memory that Hold has given a number. No command that uses it may be under way.
func (r *Ring) Drop(held int) {
	if setBuffer(r.ring, held-1, nil) == nil {
		r.memory.free = append(r.memory.free, held)
	} // else the place is not used again
}

// operation is the opcode, and the place of the memory, of a read or write.
func (m *ringMemory) operation(vector, write bool, held int) (op uint8, place uint16) {
	if held == 0 || vector && !m.vectors {
		switch {
		case vector && write:
			return iouring.OpWritev, 0
		case vector:
			return iouring.OpReadv, 0
		case write:
			return iouring.OpWrite, 0
		}
		return iouring.OpRead, 0
	}
	switch place = uint16(held - 1); {
	case vector && write:
		return iouring.OpWritevFixed, place
	case vector:
		return iouring.OpReadvFixed, place
	case write:
		return iouring.OpWriteFixed, place
	}
	return iouring.OpReadFixed, place
}

// next is an empty submission entry for the image.
func (r *Ring) next(slot int) *iouring.SQE {
	e := r.ring.Next()
	e.FD, e.UserData = int32(r.m.fd), uint64(slot)
	if r.file {
		e.FD, e.Flags = 0, iouring.FixedFile
	}
	return e
}
