package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/hugepage"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
	"github.com/lanefs/lanefs/gpu/internal/span"
)

const hostPage = 4096

// Alloc implements gpu.Runtime. Device memory of every kind is a VMM range.
func (d *Device) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	if err := d.CheckAlloc(kind, n); err != nil {
		return nil, err
	}
	switch {
	case kind.Device():
		m, err := d.reserve(kind, n, n)
		if err != nil {
			return nil, err
		}
		return m, nil
	case kind == gpu.HostPlain || kind == gpu.HostPinned || d.cfg.HostFlags == nil:
		return d.allocPages(kind, n)
	}
	return d.allocHost(kind, n)
}

// CheckAlloc says whether there is such memory.
func (d *Device) CheckAlloc(kind gpu.MemKind, n int64) error {
	if kind < gpu.HostMapped || kind > gpu.DevicePlain {
		return fmt.Errorf("%s: memory kind %d does not exist", d.prefix, kind)
	}
	if err := span.Check(d.prefix, n); err != nil {
		return err
	}
	return d.open()
}

// allocHost is memory that the library allocates and pins.
func (d *Device) allocHost(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	m := &Block{Kind: kind, Reach: gpu.Reach{Owner: gpu.OwnerDriver}, Size: n}
	if err := d.Do(d.api.HostAlloc, uintptr(unsafe.Pointer(&m.start)), uintptr(span.RoundUp(n, hostPage)), d.cfg.HostFlags(kind)); err != nil {
		return nil, fmt.Errorf("%s: %d bytes of %s memory: %w", d.prefix, n, kind, err)
	}
	start := m.start
	m.Free = func() error { return d.Do(d.api.HostFree, start) }
	m.Addr = gpu.Addr(start) // until it has a device address of its own
	if kind != gpu.HostDefault {
		if err := d.deviceAddress(m); err != nil {
			return nil, errors.Join(err, m.Free())
		}
	}
	m.Host = dynlib.Bytes(start, n)
	clear(m.Host)
	return d.Adopt(m), nil
}

// allocPages is ordinary memory, registered but for HostPlain.
func (d *Device) allocPages(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	length := span.RoundUp(n, hostPage)
	b, err := hugepage.New(length)
	if err != nil {
		return nil, fmt.Errorf("%s: %d bytes of %s memory: %w", d.prefix, n, kind, err)
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	unmap := func() error { return unix.MunmapPtr(p, uintptr(length)) }
	m := &Block{Kind: kind, Reach: gpu.Reach{Owner: gpu.OwnerPages}, Size: n, start: uintptr(p), Addr: gpu.Addr(uintptr(p)), Free: unmap,
		Host: unsafe.Slice((*byte)(p), n)}
	if kind != gpu.HostPlain {
		if err := d.pin(m, length, HostPortable|HostMapped); err != nil {
			return nil, errors.Join(err, unmap())
		}
		unpin := m.Free
		m.Free = func() error { return errors.Join(unpin(), unmap()) }
	}
	return d.Adopt(m), nil
}

// Register implements gpu.Runtime. MMIO is registered as such only where it is: a controller in software has its BAR in
// ordinary memory, which the library pins like any other.
func (d *Device) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	if err := span.Check(d.prefix, int64(len(b))); err != nil {
		return nil, err
	}
	start := uintptr(unsafe.Pointer(&b[0]))
	if start%hostPage != 0 || len(b)%hostPage != 0 {
		return nil, fmt.Errorf("%s: register %d bytes at %#x: both must be multiples of the page size %d", d.prefix, len(b), start, hostPage)
	}
	flags, owner := uintptr(HostPortable|HostMapped), gpu.OwnerPages
	switch as {
	case gpu.RegisteredReadOnly:
		flags |= HostReadOnly
	case gpu.RegisteredMMIO:
		mmio, err := dynlib.IsMMIO(start)
		if err != nil {
			return nil, fmt.Errorf("%s: register %d bytes at %#x: %w", d.prefix, len(b), start, err)
		}
		if mmio {
			flags, owner = flags|hostIOMemory, gpu.OwnerFunction
		}
	}
	m := &Block{Kind: gpu.HostPinned, Reach: gpu.Reach{Owner: owner}, Size: int64(len(b)), start: start, Host: b}
	if err := d.pin(m, int64(len(b)), flags); err != nil {
		return nil, err
	}
	return d.Adopt(m), nil
}

// pin registers the pages of m, finds their device address, and has Free unregister them.
func (d *Device) pin(m *Block, length int64, flags uintptr) error {
	if err := d.Do(d.api.HostRegister, m.start, uintptr(length), flags); err != nil {
		return fmt.Errorf("%s: register %d bytes at %#x: %w", d.prefix, length, m.start, err)
	}
	start := m.start
	m.Free = func() error { return d.Do(d.api.HostUnregister, start) }
	if err := d.deviceAddress(m); err != nil {
		return errors.Join(err, m.Free())
	}
	return nil
}

func (d *Device) deviceAddress(m *Block) error {
	var a uint64
	if err := d.Do(d.api.HostAddress, uintptr(unsafe.Pointer(&a)), m.start, 0); err != nil {
		return fmt.Errorf("%s: the device's address of %s memory: %w", d.prefix, m.Kind, err)
	}
	m.Addr = gpu.Addr(a)
	return nil
}
