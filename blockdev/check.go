package blockdev

import (
	"fmt"
	"math"
)

// Length is the number of bytes of the device that r covers; -1 if it overflows.
func (r *Request) Length() Bytes {
	switch r.Op {
	case OpRead, OpWrite:
		var n Bytes
		for _, s := range r.Bufs {
			if s.N < 0 || Bytes(s.N) > math.MaxInt64-n {
				return -1
			}
			n += Bytes(s.N)
		}
		return n
	case OpDiscard, OpWriteZeroes:
		return r.Len
	}
	return 0
}

// Check says whether r can be sent to the device that i describes: nil, or an *Error that is ErrInvalid, ErrReadOnly or ErrUnsupported.
// Do calls it first, so a request that Check refuses has no effect.
func (r *Request) Check(i Info) error {
	if why := r.check(i); why != nil {
		return r.Fail(i, why)
	}
	return nil
}

func (r *Request) check(i Info) error {
	switch r.Op {
	case OpRead, OpWrite, OpFlush, OpDiscard, OpWriteZeroes:
	default:
		return fmt.Errorf("%w: unknown operation", ErrInvalid)
	}
	if r.Op != OpRead && r.Op != OpFlush && i.ReadOnly {
		return ErrReadOnly
	}
	if r.Op == OpFlush {
		return nil
	}
	n := r.Length()
	switch {
	case r.Off < 0 || n < 0 || r.Off > math.MaxInt64-n:
		return fmt.Errorf("%w: offset or length out of range", ErrInvalid)
	case r.Off%i.BlockSize != 0 || n%i.BlockSize != 0:
		return fmt.Errorf("%w: not a multiple of the block size %d", ErrInvalid, i.BlockSize)
	case r.Off+n > i.Size():
		return fmt.Errorf("%w: past the end of the device, which has %d bytes", ErrInvalid, i.Size())
	}
	for k, s := range r.Bufs {
		if s.Buf == nil || s.Off < 0 || s.N < 0 || s.Off > s.Buf.Len()-s.N {
			return fmt.Errorf("%w: slice %d lies outside its buffer", ErrInvalid, k)
		}
		if Bytes(s.N)%i.BlockSize != 0 {
			return fmt.Errorf("%w: slice %d has %d bytes, not a multiple of the block size %d", ErrInvalid, k, s.N, i.BlockSize)
		}
		if s.Off%4 != 0 {
			return fmt.Errorf("%w: slice %d starts at %d, not a multiple of 4", ErrInvalid, k, s.Off)
		}
	}
	if r.Op == OpDiscard && !i.Discard {
		return ErrUnsupported
	}
	return nil
}

// Fail makes an *Error for the whole of r.
func (r *Request) Fail(i Info, why error) *Error {
	e := &Error{Op: r.Op, Off: r.Off, Len: max(r.Length(), 0), Err: why}
	if r.Off >= 0 && i.BlockSize > 0 {
		e.LBA = LBA(r.Off / i.BlockSize)
	}
	return e
}
