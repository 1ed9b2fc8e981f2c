package host

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/hugepage"
	"github.com/lanefs/lanefs/gpu/internal/span"
	"golang.org/x/sys/unix"
)

// Reserve implements gpu.Runtime: an inaccessible mapping holds the address range, and a memfd that grows is mapped over
// its beginning.
func (r *Runtime) Reserve(size, max int64) (gpu.Range, error) {
	if err := span.CheckRange("host runtime", size, max); err != nil {
		return nil, err
	}
	return r.reserve(size, max)
}

func (r *Runtime) reserve(size, max int64) (*memory, error) {
	max = span.RoundUp(max, granularity)
	if r.bank != nil {
		m, err := r.allocBank(gpu.DeviceVMM, max, granularity) // a bank has no holes to grow into: all of it is taken now
		if err != nil {
			return nil, err
		}
		m.reserved = max
		m.size.Store(span.RoundUp(size, granularity))
		return m, nil
	}
	fd, err := newMemFD("lanefs-"+gpu.DeviceVMM.String(), 0)
	if err != nil {
		return nil, err
	}
	m := &memory{r: r, kind: gpu.DeviceVMM, owner: gpu.OwnerPages, fd: fd, reserved: max}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		m.release()
		return nil, fmt.Errorf("host runtime: seal a memfd: %w", err)
	}
	b, err := hugepage.Reserve(0, max)
	if err != nil {
		m.release()
		return nil, fmt.Errorf("host runtime: reserve %d bytes of address space: %w", max, err)
	}
	m.mapping = b
	if err := m.Grow(size); err != nil {
		m.release()
		return nil, err
	}
	return r.adopt(m)
}

// Reserved implements gpu.Range.
func (m *memory) Reserved() int64 { return m.reserved }

// Grow implements gpu.Range: the memfd becomes longer, and the new part is mapped behind the old. Nothing moves.
func (m *memory) Grow(size int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("host runtime: grow: %w", os.ErrClosed)
	}
	if m.reserved == 0 {
		return fmt.Errorf("host runtime: %s memory cannot grow: only a reserved range can", m.kind)
	}
	old, size := m.size.Load(), span.RoundUp(size, granularity)
	if size <= old {
		return nil
	}
	if size > m.reserved {
		return fmt.Errorf("host runtime: grow to %d bytes: only %d are reserved", size, m.reserved)
	}
	if m.bank != nil {
		m.size.Store(size)
		return nil
	}
	if err := m.r.charge(size - old); err != nil {
		return err
	}
	m.charged += size - old
	if err := unix.Ftruncate(m.fd, size); err != nil {
		m.charged -= size - old
		m.r.used.Add(old - size)
		return fmt.Errorf("host runtime: grow to %d bytes: %w", size, err)
	}
	if err := mapAt(unsafe.Pointer(&m.mapping[old]), size-old, m.fd, old); err != nil {
		// The memfd keeps its length, since it is sealed; a later Grow maps it.
		m.charged -= size - old
		m.r.used.Add(old - size)
		return fmt.Errorf("host runtime: map %d more bytes: %w", size-old, err)
	}
	m.size.Store(size)
	return nil
}
