package exchange

import (
	"encoding/binary"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Handler answers requests, many at once.
type Handler interface {
	// Handle reads a request from in, a stream of bytes that begins with its fuse_in_header, and writes the answer to out, likewise
	// with a fuse_out_header. It returns how many bytes those are; 0 is answered with EIO, or not at all where the kernel waits for no answer. Both
	// are the same memory, but for the operation's own header and an IOCTL's payload: what Handle writes there it writes when it has read what it needs.
	Handle(in, out [][]byte) int
}

// Exchange is the memory of a request, and then of its answer.
type Exchange struct {
	Header  []byte // of InHeaderSize at least: a fuse_in_header; of an answer a fuse_out_header
	Op      []byte // what follows that of a request: the operation's own header, as far as there is room
	Payload *Payload

	read  fuse.ReadIn
	write fuse.WriteIn
	in    [3][]byte
	out   [2][]byte
}

// In is the request's header, until it is answered.
func (x *Exchange) In() *InHeader { return (*InHeader)(unsafe.Pointer(&x.Header[0])) }

// Async says whether the thread that made the request may not wait for it: that may read ahead, or do asynchronous I/O. A thread that waits for a request which
// was taken cannot end before it is answered, and its program's memory neither.
func (x *Exchange) Async() bool {
	switch x.In().Opcode {
	case opRead, opWrite, opRelease, opReleaseDir:
		return true
	}
	return false
}

// ReadSize is how many bytes a READ asks for; 0 for any other request.
func (x *Exchange) ReadSize() int {
	if x.In().Opcode != opRead || len(x.Op) < readInSize {
		return 0
	}
	const at = unsafe.Offsetof(fuse.ReadIn{}.Size) - InHeaderSize
	return int(binary.NativeEndian.Uint32(x.Op[at:]))
}

// Answer has h answer the request, of which op bytes are in Op and n in the payload; d is h if that is Data, else nil. It says how many bytes of the
// payload are the answer's, or that there is none.
func (x *Exchange) Answer(h Handler, d Data, op, n int) (size int, answered bool) {
	in := x.In()
	if d != nil {
		if size, ok := x.answerData(d, in, n); ok {
			return size, true
		}
	}
	unique, opcode := in.Unique, in.Opcode
	x.in = [3][]byte{x.Header[:InHeaderSize], x.Op[:op], x.Payload.Memory[:n]}
	x.out = [2][]byte{x.Header[:OutHeaderSize], x.Payload.Memory}
	if opcode == opIoctl {
		x.in[2] = append([]byte(nil), x.in[2]...)
	}
	wrote := h.Handle(x.in[:], x.out[:])
	if wrote == 0 {
		switch opcode {
		case opForget, opBatchForget, opInterrupt, opNotifyReply:
			return 0, false
		}
	}
	out := (*outHeader)(unsafe.Pointer(&x.Header[0]))
	if wrote < OutHeaderSize || out.unique != unique {
		*out = outHeader{len: OutHeaderSize, error: -int32(unix.EIO), unique: unique}
		wrote = OutHeaderSize
	}
	return wrote - OutHeaderSize, true
}
