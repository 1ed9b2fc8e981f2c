package host

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/hugepage"
	"github.com/lanefs/lanefs/gpu/internal/span"
	"golang.org/x/sys/unix"
)

var pageSize = int64(os.Getpagesize())

// memory is a gpu.Memory, and a gpu.Range if reserved is not 0. It is mapped at mapping's start all its life.
type memory struct {
	r        *Runtime
	kind     gpu.MemKind
	owner    gpu.Owner    // unless it is of a bank
	mapping  []byte       // everything mapped: whole pages; a range's reservation
	size     atomic.Int64 // usable bytes from mapping's start
	reserved int64        // of a range
	fd       int          // memfd behind the mapping, -1 for none
	offset   int64        // of the mapping in fd
	imported bool         // the memfd is another's
	borrowed bool         // the mapping is another's: Register, Bank
	bank     *bank        // it is a piece of, at offset; nil for none
	charged  int64        // device memory it counts for; protected by mu
	mu       sync.Mutex   // serialises Grow, Export and Close
	closed   bool         // protected by mu
}

// Alloc implements gpu.Runtime.
func (r *Runtime) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	if kind < gpu.HostMapped || kind > gpu.DevicePlain {
		return nil, fmt.Errorf("host runtime: memory kind %d does not exist", kind)
	}
	if err := span.Check("host runtime", size); err != nil {
		return nil, err
	}
	if r.bank != nil && kind.Device() && kind != gpu.DeviceVMM {
		m, err := r.allocBank(kind, size, pageSize)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	if kind == gpu.DeviceVMM {
		m, err := r.reserve(size, size)
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	m := &memory{r: r, kind: kind, owner: gpu.OwnerPages, fd: -1}
	m.size.Store(size)
	length := span.RoundUp(size, pageSize)
	if kind.Device() {
		if err := r.charge(length); err != nil {
			return nil, err
		}
		m.charged = length
		fd, err := newMemFD("lanefs-"+kind.String(), length)
		if err != nil {
			m.release()
			return nil, err
		}
		m.fd = fd
		// A program that maps an export would be killed if the memfd shrank.
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			m.release()
			return nil, fmt.Errorf("host runtime: seal a memfd: %w", err)
		}
	}
	var err error
	if m.mapping, err = m.open(length); err != nil {
		m.release()
		return nil, fmt.Errorf("host runtime: map %d bytes of %s memory: %w", length, kind, err)
	}
	return r.adopt(m)
}

// open maps the memory's memfd or, where it has none, new pages.
func (m *memory) open(length int64) ([]byte, error) {
	if m.fd < 0 {
		return hugepage.New(length)
	}
	b, err := hugepage.Map(m.fd, 0, length, unix.PROT_READ|unix.PROT_WRITE)
	if err == nil && length >= granularity {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // fewer page faults and TLB misses where the system allows it
	}
	return b, err
}

// Populate makes the pages of the first n bytes, which are about to be written, huge ones where the kernel does that: a page fault for each 4 KiB, here and in each program that maps the memory,
// takes longer than to fill it, and to pin them for a GPU does again.
func (m *memory) Populate(n int64) {
	if m.fd >= 0 {
		hugepage.Populate(m.mapping[:min(n, m.size.Load())], m.offset)
	}
}

// Register implements gpu.Runtime. On a CPU there is nothing to do but to remember the bytes.
func (r *Runtime) Register(b []byte, as gpu.Registered) (gpu.Memory, error) {
	if err := span.Check("host runtime", int64(len(b))); err != nil {
		return nil, err
	}
	if start := uintptr(unsafe.Pointer(&b[0])); int64(start)%pageSize != 0 || int64(len(b))%pageSize != 0 {
		return nil, fmt.Errorf("host runtime: register %d bytes at %#x: both must be multiples of the page size %d", len(b), start, pageSize)
	}
	m := &memory{r: r, kind: gpu.HostPinned, owner: gpu.OwnerPages, fd: -1, mapping: b, borrowed: true}
	if as == gpu.RegisteredMMIO {
		m.owner = gpu.OwnerFunction
	}
	m.size.Store(int64(len(b)))
	return r.adopt(m)
}

// adopt enters m among the live memories, or releases it if the runtime is closed.
func (r *Runtime) adopt(m *memory) (*memory, error) {
	if err := r.add(m); err != nil {
		m.release()
		return nil, err
	}
	return m, nil
}

// release undoes what was acquired, in reverse. The caller holds mu, or has not published m yet.
func (m *memory) release() {
	if m.mapping != nil && !m.borrowed {
		unmap(m.mapping)
	}
	if m.fd >= 0 {
		unix.Close(m.fd)
	}
	if m.bank != nil {
		m.bank.give(m.offset)
		m.bank = nil
	}
	m.r.used.Add(-m.charged)
	m.mapping, m.fd, m.charged = nil, -1, 0
}

func (m *memory) Kind() gpu.MemKind { return m.kind }
func (m *memory) Size() int64       { return m.size.Load() }

// Addr is the CPU's address: the host runtime's kernels are the CPU's.
func (m *memory) Addr() gpu.Addr {
	return gpu.Addr(uintptr(unsafe.Pointer(unsafe.SliceData(m.mapping))))
}

// Host is nil once the memory is closed.
func (m *memory) Host() []byte {
	if m.mapping == nil {
		return nil
	}
	return m.mapping[:m.size.Load():m.size.Load()]
}

// Reach implements gpu.Memory.
func (m *memory) Reach() gpu.Reach {
	if m.bank != nil {
		return gpu.Reach{Owner: gpu.OwnerFunction, Keeper: m.bank}
	}
	r := gpu.Reach{Owner: m.owner}
	if m.kind.Device() {
		r.Device = m.r.facts.PCI
	}
	return r
}

// Close implements gpu.Memory. A second Close is an error: by then the address may be another's.
func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("host runtime: %s memory: %w", m.kind, os.ErrClosed)
	}
	m.closed = true
	m.r.remove(m)
	m.release()
	return nil
}
