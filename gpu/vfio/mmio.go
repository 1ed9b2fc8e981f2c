package vfio

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// All accesses by which the CPU itself touches a BAR. A fault (memory space was switched off under us) reads as all ones,
// as the bus would answer, and loses a write.

// load32 reads the little-endian register at p.
func load32(p *uint32) (v uint32) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			v = ^uint32(0)
		}
	}()
	return atomic.LoadUint32(p)
}

// store32 writes the register at p after every store before it, such as those of the queue entries that a doorbell
// announces.
func store32(p *uint32, v uint32) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	if runtime.GOARCH != "amd64" {
		atomic.StoreUint32(p, v)
		return
	}
	plainStore32(p, v) // amd64 keeps the order of stores; atomic.StoreUint32 would be a locked XCHG
}

//go:noinline
func plainStore32(p *uint32, v uint32) { *p = v }

func register(b []byte, off int64) *uint32 {
	return (*uint32)(unsafe.Pointer(&b[off : off+4 : off+4][0]))
}
