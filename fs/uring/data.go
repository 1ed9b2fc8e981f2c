package uring

import (
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
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

// allocPayload gives the server its payload.
func (s *server) allocPayload(opt Options) error {
	if s.payload = opt.Alloc(opt.Payload); s.payload == nil {
		b, free, err := anonymous(opt.Payload)
		if err != nil {
			return err
		}
		s.payload = &Payload{Memory: b, Free: free}
	}
	s.free = append(s.free, s.payload.Free)
	return nil
}

const (
	opRead  = 15 // FUSE_READ
	opWrite = 16 // FUSE_WRITE

	// Of fuse_read_in and fuse_write_in, without the fuse_in_header that go-fuse's types begin with.
	readInSize  = int(unsafe.Sizeof(fuse.ReadIn{})) - inHeaderSize
	writeInSize = int(unsafe.Sizeof(fuse.WriteIn{})) - inHeaderSize
)

// request is a READ or WRITE in one piece.
type request struct {
	read  fuse.ReadIn
	write fuse.WriteIn
}

// handleData has Data answer the request, whose payload has n bytes. It reports false if Handle is to.
func (s *server) handleData(in *inHeader, n int) bool {
	out := outHeader{len: outHeaderSize, unique: in.unique}
	switch {
	case in.opcode == opRead && int(in.len) == inHeaderSize+readInSize:
		r := &s.request.read
		*(*inHeader)(unsafe.Pointer(r)) = *in
		copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), inHeaderSize)), readInSize), s.h.opIn[:])
		if int64(r.Size) > int64(len(s.payload.Memory)) {
			return false
		}
		if r.Size >= readTogether {
			s.beginLargeRead()
			defer s.endLargeRead()
		} else {
			s.stay()
		}
		size, status := s.q.t.data.ReadPayload(r, s.payload)
		if out.error = -int32(status); status == fuse.OK {
			out.len += uint32(size)
		}
	case in.opcode == opWrite && int(in.len) == inHeaderSize+writeInSize+n:
		w := &s.request.write
		*(*inHeader)(unsafe.Pointer(w)) = *in
		copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(w), inHeaderSize)), writeInSize), s.h.opIn[:])
		if int64(w.Size) != int64(n) {
			return false
		}
		size, status := s.q.t.data.WritePayload(w, s.payload)
		if out.error = -int32(status); status == fuse.OK {
			*(*fuse.WriteOut)(unsafe.Pointer(&s.payload.Memory[0])) = fuse.WriteOut{Size: size}
			out.len += uint32(unsafe.Sizeof(fuse.WriteOut{}))
		}
	default:
		return false
	}
	*(*outHeader)(unsafe.Pointer(&s.h.inOut)) = out
	s.h.ent.payloadSz = out.len - outHeaderSize
	return true
}
