package iouring

import (
	"os"
	"structs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a ring uses again and again can be registered with it: then the kernel has the file, and the pages of memory, in its hands already when a
// command comes. The pages stay pinned until they are taken back: memory whose pages change meanwhile, by a punched hole or another mapping, must
// not be registered. Pages count for RLIMIT_MEMLOCK, unless the process has CAP_IPC_LOCK.

// MaxBuffer is how many bytes one registered buffer has at most.
const MaxBuffer = 1 << 30

// Flags of an SQE.
const FixedFile = 1 << 0 // FD is the place of a registered file

const (
	registerFiles         = 2
	unregisterFiles       = 3
	registerProbe         = 8
	registerBuffers2      = 15 // Linux 5.13
	registerBuffersUpdate = 16
	unregisterBuffers     = 1

	registerSparse = 1 << 0 // Linux 5.19
	opSupported    = 1 << 0
)

// rsrcRegister is struct io_uring_rsrc_register.
type rsrcRegister struct {
	_ structs.HostLayout

	nr, flags     uint32
	_, data, tags uint64
}

// rsrcUpdate is struct io_uring_rsrc_update2.
type rsrcUpdate struct {
	_ structs.HostLayout

	offset, _  uint32
	data, tags uint64
	nr, _      uint32
}

// probe is struct io_uring_probe with room for all operations.
type probe struct {
	_ structs.HostLayout

	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [256]struct {
		op, _ uint8
		flags uint16
		_     uint32
	}
}

func (r *Ring) register(what uintptr, arg unsafe.Pointer, n uintptr) error {
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), what, uintptr(arg), n, 0, 0); e != 0 {
		return os.NewSyscallError("io_uring_register", e)
	}
	return nil
}

// RegisterFile makes fd the file at place 0.
func (r *Ring) RegisterFile(fd int) error {
	n := int32(fd)
	return r.register(registerFiles, unsafe.Pointer(&n), 1)
}

// UnregisterFile lets go of the file: Close alone leaves that to the kernel, which does it some time later.
func (r *Ring) UnregisterFile() error { return r.register(unregisterFiles, nil, 0) }

// MakeBuffers makes n places for buffers, all empty.
func (r *Ring) MakeBuffers(n int) error {
	a := rsrcRegister{nr: uint32(n), flags: registerSparse}
	return r.register(registerBuffers2, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// SetBuffer pins b and puts it at place i; nil empties the place. What was there is unpinned when the last command has ended that uses it.
func (r *Ring) SetBuffer(i int, b []byte) error {
	v := unix.Iovec{Base: unsafe.SliceData(b), Len: uint64(len(b))}
	a := rsrcUpdate{offset: uint32(i), data: uint64(uintptr(unsafe.Pointer(&v))), nr: 1}
	return r.register(registerBuffersUpdate, unsafe.Pointer(&a), unsafe.Sizeof(a))
}

// UnregisterBuffers takes all buffers and their places away.
func (r *Ring) UnregisterBuffers() error { return r.register(unregisterBuffers, nil, 0) }

// Knows says whether the kernel has an operation.
func (r *Ring) Knows(op uint8) bool {
	p := new(probe)
	return r.register(registerProbe, unsafe.Pointer(p), uintptr(len(p.ops))) == nil && op <= p.lastOp && p.ops[op].flags&opSupported != 0
}
