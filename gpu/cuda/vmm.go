package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
)

// deviceMemory is a gpu.Memory in the device, and a gpu.Range: pieces of physical memory, one behind the other, in a
// reserved address range [CUDA 6.14].
type deviceMemory struct {
	r        *Runtime
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
func (r *Runtime) Reserve(size, max int64) (gpu.Range, error) {
	if max < size {
		return nil, fmt.Errorf("cuda runtime: reserve %d bytes with %d backed: the range must hold them", max, size)
	}
	if err := checkSize(max); err != nil {
		return nil, err
	}
	if size < 0 {
		return nil, fmt.Errorf("cuda runtime: back %d bytes: must not be negative", size)
	}
	m, err := r.reserve(gpu.DeviceVMM, size, max)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (r *Runtime) reserve(kind gpu.MemKind, size, max int64) (*deviceMemory, error) {
	m := &deviceMemory{r: r, kind: kind, reserved: roundUp(max, r.facts.Granularity)}
	if err := r.do("cuMemAddressReserve", r.lib.memAddressReserve, uintptr(unsafe.Pointer(&m.addr)), uintptr(m.reserved), 0, 0, 0); err != nil {
		return nil, fmt.Errorf("cuda runtime: reserve %d bytes of addresses for %s memory: %w", m.reserved, kind, err)
	}
	r.memories.Add(1)
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
		return fmt.Errorf("cuda runtime: grow: %w", os.ErrClosed)
	}
	if size > m.reserved {
		return fmt.Errorf("cuda runtime: grow to %d bytes: only %d are reserved", size, m.reserved)
	}
	old := m.size.Load()
	more := roundUp(size, m.r.facts.Granularity) - old
	if more <= 0 {
		return nil
	}
	var handle uint64
	code, err := m.r.status("cuMemCreate", m.r.lib.memCreate, uintptr(unsafe.Pointer(&handle)), uintptr(more), uintptr(unsafe.Pointer(&m.r.prop)), 0)
	switch {
	case err != nil:
		return fmt.Errorf("cuda runtime: %w", err)
	case code == outOfMemory:
		return m.r.outOfMemory(m.kind, more)
	case code != success:
		return fmt.Errorf("cuda runtime: %d bytes of %s memory: %w", more, m.kind, m.r.lib.check("cuMemCreate", code))
	}
	if err := m.mapLocked(piece{handle, more}); err != nil {
		return err
	}
	return nil
}

// mapLocked maps p, which m owns from here on, behind what is mapped, and lets the device read and write it.
func (m *deviceMemory) mapLocked(p piece) error {
	l, at := m.r.lib, m.size.Load()
	if err := m.r.do("cuMemMap", l.memMap, uintptr(m.addr)+uintptr(at), uintptr(p.size), 0, uintptr(p.handle), 0); err != nil {
		return errors.Join(fmt.Errorf("cuda runtime: map %d bytes: %w", p.size, err), m.r.do("cuMemRelease", l.memRelease, uintptr(p.handle)))
	}
	m.pieces = append(m.pieces, p)
	desc := accessDesc{Location: m.r.prop.Location, Flags: accessReadWrite}
	err := m.r.do("cuMemSetAccess", l.memSetAccess, uintptr(m.addr)+uintptr(at), uintptr(p.size), uintptr(unsafe.Pointer(&desc)), 1)
	if err != nil {
		return errors.Join(fmt.Errorf("cuda runtime: give the device access to %d bytes: %w", p.size, err), m.dropLocked(at))
	}
	m.size.Store(at + p.size)
	return nil
}

// dropLocked unmaps the last piece, which is at the offset at, and gives it back.
func (m *deviceMemory) dropLocked(at int64) error {
	last := m.pieces[len(m.pieces)-1]
	m.pieces = m.pieces[:len(m.pieces)-1]
	return errors.Join(
		m.r.do("cuMemUnmap", m.r.lib.memUnmap, uintptr(m.addr)+uintptr(at), uintptr(last.size)),
		m.r.do("cuMemRelease", m.r.lib.memRelease, uintptr(last.handle)))
}

// outOfMemory says how much there was.
func (r *Runtime) outOfMemory(kind gpu.MemKind, n int64) error {
	var free, total uint64
	if err := r.do("cuMemGetInfo", r.lib.memGetInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total))); err != nil {
		return fmt.Errorf("cuda runtime: out of device memory: asked for %d bytes: %w", n, err)
	}
	return fmt.Errorf("cuda runtime: out of device memory: asked for %d bytes of %s memory, %d of %d are free", n, kind, free, total)
}

func (m *deviceMemory) Kind() gpu.MemKind { return m.kind }
func (m *deviceMemory) Size() int64       { return m.size.Load() }
func (m *deviceMemory) Addr() gpu.Addr    { return m.addr }
func (m *deviceMemory) Reserved() int64   { return m.reserved }

// Host is nil: the CPU does not reach NVIDIA's device memory.
func (m *deviceMemory) Host() []byte { return nil }

// Close implements gpu.Memory. It does not wait for kernels: none may use the memory any more.
func (m *deviceMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("cuda runtime: %s memory: %w", m.kind, os.ErrClosed)
	}
	m.closed = true
	m.r.memories.Add(-1)
	var errs []error
	for at := m.size.Load(); len(m.pieces) > 0; {
		at -= m.pieces[len(m.pieces)-1].size
		errs = append(errs, m.dropLocked(at))
	}
	errs = append(errs, m.r.do("cuMemAddressFree", m.r.lib.memAddressFree, uintptr(m.addr), uintptr(m.reserved)))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cuda runtime: free %s memory: %w", m.kind, err)
	}
	return nil
}
