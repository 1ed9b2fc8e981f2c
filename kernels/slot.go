package kernels

import (
	"sync/atomic"
	"unsafe"
)

// Slots of the two rings (layout.h): 64-bit word i has the slot's seq in its lower half and dword i of the struct in its upper.
// Each word so carries the mark that it is there, and no fence orders the words on the bus.
type (
	WorkSlot   [WorkSize / 4]uint64
	ResultSlot [ResultSize / 4]uint64
)

// Sizes of slots, in bytes.
const (
	WorkSlotSize   = 2 * WorkSize
	ResultSlotSize = 2 * ResultSize
)

// Put stores w as the item with this seq, its position plus one. Word 0 comes last, and before what the caller loads
// afterwards: by an exchange, since under the race detector a store outside Go's heap is a plain one, which a later load
// overtakes.
func (s *WorkSlot) Put(w *Work, seq uint32) {
	d := (*[len(s)]uint32)(unsafe.Pointer(w))
	for i := 1; i < len(s); i++ {
		s[i] = uint64(d[i])<<32 | uint64(seq)
	}
	atomic.SwapUint32(s.Seq(), seq)
}

// Seq is word 0's lower half, which a reader polls.
func (s *WorkSlot) Seq() *uint32 { return (*uint32)(unsafe.Pointer(&s[0])) }

// Take copies the answer with this seq, its position plus one, to r, and reports whether all of it is there.
func (s *ResultSlot) Take(r *Result, seq uint32) bool {
	// Acquire: orders this load before those of the other words, and before the caller's reads of the command's data.
	if atomic.LoadUint32((*uint32)(unsafe.Pointer(&s[0]))) != seq {
		return false
	}
	d := (*[len(s)]uint32)(unsafe.Pointer(r))
	d[0] = seq
	for i := 1; i < len(s); i++ {
		w := atomic.LoadUint64(&s[i])
		if uint32(w) != seq {
			return false
		}
		d[i] = uint32(w >> 32)
	}
	return true
}
