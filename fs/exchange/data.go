package exchange

import (
	"os"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Data is a Handler that answers READ and WRITE itself, in the memory that carries their bytes: go-fuse's ProtocolServer allocates for each
// of them, and has the bytes of a READ in memory of its own.
//
// The payload is the callee's until it returns. Then the kernel may fill it with another request, so nothing may write to it any more: a
// device that was asked to has ended.
type Data interface {
	// ReadPayload fills payload from its start, in.Size bytes or as many as there are, and returns how many.
	ReadPayload(in *fuse.ReadIn, payload *Payload) (n int, status fuse.Status)
	// WritePayload stores the first in.Size bytes of payload, and returns how many it stored. It may write to the payload.
	WritePayload(in *fuse.WriteIn, payload *Payload) (n uint32, status fuse.Status)
}

// Payload is the memory of an entry in which file data comes and goes.
type Payload struct {
	Memory []byte // page-aligned, and not moved
	Of     any    // its allocator's, to know it by
	Free   func()
}

// NewPayload is one that alloc gives, or else anonymous memory, which costs what is used of it.
func NewPayload(size int, alloc func(size int) *Payload) (*Payload, error) {
	if p := alloc(size); p != nil {
		return p, nil
	}
	b, free, err := Anonymous(size)
	if err != nil {
		return nil, err
	}
	return &Payload{Memory: b, Free: free}, nil
}

// Anonymous is memory that costs what is used of it.
func Anonymous(size int) ([]byte, func(), error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	return b, func() { unix.Munmap(b) }, nil
}

// Of fuse_read_in and fuse_write_in, without the fuse_in_header that go-fuse's types begin with.
const (
	readInSize  = int(unsafe.Sizeof(fuse.ReadIn{})) - InHeaderSize
	writeInSize = int(unsafe.Sizeof(fuse.WriteIn{})) - InHeaderSize
)

// answerData has Data answer the request, whose payload has n bytes, and says how many bytes of the payload are the answer's. It reports false if
// Handle is to.
func (x *Exchange) answerData(d Data, in *InHeader, n int) (answer int, ok bool) {
	out := outHeader{len: OutHeaderSize, unique: in.Unique}
	switch {
	case in.Opcode == opRead && int(in.Len) == InHeaderSize+readInSize:
		r := &x.read
		*(*InHeader)(unsafe.Pointer(r)) = *in
		copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), InHeaderSize)), readInSize), x.Op)
		if int64(r.Size) > int64(len(x.Payload.Memory)) {
			return 0, false
		}
		size, status := d.ReadPayload(r, x.Payload)
		if out.error = -int32(status); status == fuse.OK {
			out.len += uint32(size)
		}
	case in.Opcode == opWrite && int(in.Len) == InHeaderSize+writeInSize+n:
		w := &x.write
		*(*InHeader)(unsafe.Pointer(w)) = *in
		copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(w), InHeaderSize)), writeInSize), x.Op)
		if int64(w.Size) != int64(n) {
			return 0, false
		}
		size, status := d.WritePayload(w, x.Payload)
		if out.error = -int32(status); status == fuse.OK {
			*(*fuse.WriteOut)(unsafe.Pointer(&x.Payload.Memory[0])) = fuse.WriteOut{Size: size}
			out.len += uint32(unsafe.Sizeof(fuse.WriteOut{}))
		}
	default:
		return 0, false
	}
	*(*outHeader)(unsafe.Pointer(&x.Header[0])) = out
	return int(out.len - OutHeaderSize), true
}
