package vfio

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"unsafe"
)

// Read32 reads a register; all ones once the device is gone.
func (d *Device) Read32(off int64) uint32 {
	if d.gone.Load() != nil || off < 0 || off > int64(len(d.bar.mem))-4 {
		return ^uint32(0)
	}
	if d.bar.mapped(off, 4) {
		return load32(register(d.bar.mem, off))
	}
	var b [4]byte
	if d.pio(d.m.pread, b[:], off) != nil {
		return ^uint32(0)
	}
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// Read64 is two reads, low word first: not every device takes 64-bit accesses.
func (d *Device) Read64(off int64) uint64 {
	low := d.Read32(off)
	return uint64(low) | uint64(d.Read32(off+4))<<32
}

// Write32 writes a register; nothing happens once the device is gone.
func (d *Device) Write32(off int64, v uint32) {
	switch {
	case d.gone.Load() != nil || off < 0 || off > int64(len(d.bar.mem))-4:
	case d.bar.mapped(off, 4):
		store32(register(d.bar.mem, off), v)
	default:
		b := [4]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)}
		_ = d.pio(d.m.pwrite, b[:], off) // a bus tells no writer of its failure either
	}
}

// Write64 is two writes, low word first.
func (d *Device) Write64(off int64, v uint64) {
	d.Write32(off, uint32(v))
	d.Write32(off+4, uint32(v>>32))
}

// pio reads or writes the BAR by system calls, where it cannot be mapped.
func (d *Device) pio(call func(int, []byte, int64) (int, error), b []byte, off int64) error {
	return d.with(func(fd int) error {
		n, err := call(fd, b, d.bar.offset+off)
		if err == nil && n != len(b) {
			err = fmt.Errorf("%d bytes instead of %d", n, len(b))
		}
		return err
	})
}

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

// store32 writes the register at p after every store before it, such as those to descriptors in memory that the register
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
