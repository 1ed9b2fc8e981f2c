package driver

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/span"
)

// deviceMemory is a gpu.Memory in the device, and a gpu.Range: pieces of physical memory, one behind the other, in a
// reserved address range (CUDA Driver API 6.14, HIP "Virtual Memory Management").
type deviceMemory struct {
	d        *Device
	kind     gpu.MemKind
	addr     gpu.Addr
	reserved int64
	size     atomic.Int64

	mu     sync.Mutex
	pieces []piece // protected by mu
	closed bool    // protected by mu
}

// piece is one handle, mapped at its offset.
type piece struct {
	handle uint64
	size   int64
}

// Reserve implements gpu.Runtime.
func (d *Device) Reserve(size, max int64) (gpu.Range, error) {
	if err := span.CheckRange(d.prefix, size, max); err != nil {
		return nil, err
	}
	m, err := d.reserve(gpu.DeviceVMM, size, max)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (d *Device) reserve(kind gpu.MemKind, size, max int64) (*deviceMemory, error) {
	if d.cfg.Facts.Granularity == 0 {
		return nil, fmt.Errorf("%s: %s memory: %s", d.prefix, kind, d.cfg.NoVMM)
	}
	m := &deviceMemory{d: d, kind: kind, reserved: span.RoundUp(max, d.cfg.Facts.Granularity)}
	if err := d.Do(d.api.Reserve, uintptr(unsafe.Pointer(&m.addr)), uintptr(m.reserved), 0, 0, 0); err != nil {
		return nil, fmt.Errorf("%s: reserve %d bytes of addresses for %s memory: %w", d.prefix, m.reserved, kind, err)
	}
	d.memories.Add(1)
	if err := m.Grow(size); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Grow implements gpu.Range: another piece of physical memory is mapped behind what is there. Nothing moves.
func (m *deviceMemory) Grow(size int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("%s: grow: %w", m.d.prefix, os.ErrClosed)
	}
	if size > m.reserved {
		return fmt.Errorf("%s: grow to %d bytes: only %d are reserved", m.d.prefix, size, m.reserved)
	}
	old := m.size.Load()
	more := span.RoundUp(size, m.d.cfg.Facts.Granularity) - old
	if more <= 0 {
		return nil
	}
	var handle uint64
	code, err := m.d.Status(m.d.api.Create, uintptr(unsafe.Pointer(&handle)), uintptr(more), uintptr(unsafe.Pointer(&m.d.cfg.Prop)), 0)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", m.d.prefix, err)
	case code == outOfMemory:
		return m.d.OutOfMemory(m.kind, more)
	case code != Success:
		return fmt.Errorf("%s: %d bytes of %s memory: %w", m.d.prefix, more, m.kind, m.d.api.Check(m.d.api.Create.Name, code))
	}
	if err := m.mapLocked(piece{handle, more}); err != nil {
		return err
	}
	return nil
}

// mapLocked maps p, which m owns from here on, behind what is mapped, and lets the device read and write it.
func (m *deviceMemory) mapLocked(p piece) error {
	at := m.size.Load()
	if err := m.d.Do(m.d.api.Map, uintptr(m.addr)+uintptr(at), uintptr(p.size), 0, uintptr(p.handle), 0); err != nil {
		return errors.Join(fmt.Errorf("%s: map %d bytes: %w", m.d.prefix, p.size, err), m.d.Do(m.d.api.Release, uintptr(p.handle)))
	}
	m.pieces = append(m.pieces, p)
	desc := AccessDesc{Location: m.d.cfg.Prop.Location, Flags: accessReadWrite}
	err := m.d.Do(m.d.api.SetAccess, uintptr(m.addr)+uintptr(at), uintptr(p.size), uintptr(unsafe.Pointer(&desc)), 1)
	if err != nil {
		return errors.Join(fmt.Errorf("%s: give the device access to %d bytes: %w", m.d.prefix, p.size, err), m.dropLocked(at))
	}
	m.size.Store(at + p.size)
	return nil
}

// dropLocked unmaps the last piece, which is at the offset at, and gives it back.
func (m *deviceMemory) dropLocked(at int64) error {
	last := m.pieces[len(m.pieces)-1]
	m.pieces = m.pieces[:len(m.pieces)-1]
	return errors.Join(
		m.d.Do(m.d.api.Unmap, uintptr(m.addr)+uintptr(at), uintptr(last.size)),
		m.d.Do(m.d.api.Release, uintptr(last.handle)))
}

// OutOfMemory says how much there was.
func (d *Device) OutOfMemory(kind gpu.MemKind, n int64) error {
	var free, total uint64
	if err := d.Do(d.api.MemInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total))); err != nil {
		return fmt.Errorf("%s: out of device memory: asked for %d bytes: %w", d.prefix, n, err)
	}
	return fmt.Errorf("%s: out of device memory: asked for %d bytes of %s memory, %d of %d are free", d.prefix, n, kind, free, total)
}

func (m *deviceMemory) Kind() gpu.MemKind { return m.kind }
func (m *deviceMemory) Size() int64       { return m.size.Load() }
func (m *deviceMemory) Addr() gpu.Addr    { return m.addr }
func (m *deviceMemory) Reserved() int64   { return m.reserved }

// Host is nil: the CPU does not reach VMM memory.
func (m *deviceMemory) Host() []byte { return nil }

// Reach implements gpu.Memory.
func (m *deviceMemory) Reach() gpu.Reach { return m.d.DeviceReach() }

// Close implements gpu.Memory. It does not wait for kernels: none may use the memory any more.
func (m *deviceMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("%s: %s memory: %w", m.d.prefix, m.kind, os.ErrClosed)
	}
	m.closed = true
	m.d.memories.Add(-1)
	var errs []error
	for at := m.size.Load(); len(m.pieces) > 0; {
		at -= m.pieces[len(m.pieces)-1].size
		errs = append(errs, m.dropLocked(at))
	}
	errs = append(errs, m.d.Do(m.d.api.FreeAddress, uintptr(m.addr), uintptr(m.reserved)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: free %s memory: %w", m.d.prefix, m.kind, err)
	}
	return nil
}
