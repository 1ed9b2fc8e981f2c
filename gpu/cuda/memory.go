package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

const hostPage = 4096

// hostMemory is a gpu.Memory in the host's RAM.
type hostMemory struct {
	r     *Runtime
	kind  gpu.MemKind
	addr  gpu.Addr
	size  int64
	host  []byte // nil once closed; protected by mu for writing
	start uintptr
	free  func() error

	mu     sync.Mutex
	closed bool // protected by mu
}

// Alloc implements gpu.Runtime.
func (r *Runtime) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	if kind < gpu.HostMapped || kind > gpu.DevicePlain {
		return nil, fmt.Errorf("cuda runtime: memory kind %d does not exist", kind)
	}
	if err := checkSize(size); err != nil {
		return nil, err
	}
	switch {
	case kind.Device():
		m, err := r.reserve(kind, size, size)
		if err != nil {
			return nil, err
		}
		return m, nil
	case kind == gpu.HostPlain || kind == gpu.HostPinned:
		return r.allocPages(kind, size)
	}
	return r.allocHost(kind, size)
}

// allocHost is memory that the driver allocates and pins.
func (r *Runtime) allocHost(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	flags := uintptr(hostPortable | hostDeviceMap)
	if kind == gpu.HostDefault {
		flags = hostPortable
	}
	m := &hostMemory{r: r, kind: kind, size: size}
	if err := r.do("cuMemHostAlloc", r.lib.memHostAlloc, uintptr(unsafe.Pointer(&m.start)), uintptr(roundUp(size, hostPage)), flags); err != nil {
		return nil, fmt.Errorf("cuda runtime: %d bytes of %s memory: %w", size, kind, err)
	}
	m.free = func() error { return r.do("cuMemFreeHost", r.lib.memFreeHost, m.start) }
	m.addr = gpu.Addr(m.start) // until it has a device address of its own
	if kind != gpu.HostDefault {
		if err := r.deviceAddress(m); err != nil {
			return nil, errors.Join(err, m.free())
		}
	}
	m.host = dynlib.Bytes(m.start, size)
	clear(m.host)
	r.memories.Add(1)
	return m, nil
}

// allocPages is ordinary memory, registered for HostPinned.
func (r *Runtime) allocPages(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	r.mu.RLock()
	closed := r.closed
	r.mu.RUnlock()
	if closed {
		return nil, fmt.Errorf("cuda runtime: %w", os.ErrClosed)
	}
	length := roundUp(size, hostPage)
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("cuda runtime: %d bytes of %s memory: %w", size, kind, err)
	}
	unmap := func() error { return unix.MunmapPtr(p, uintptr(length)) }
	m := &hostMemory{r: r, kind: kind, size: size, start: uintptr(p), addr: gpu.Addr(uintptr(p)), free: unmap,
		host: unsafe.Slice((*byte)(p), size)}
	if kind == gpu.HostPinned {
		if err := r.pin(m, length, hostPortable|hostDeviceMap); err != nil {
			return nil, errors.Join(err, unmap())
		}
		m.free = func() error {
			return errors.Join(r.do("cuMemHostUnregister", r.lib.memHostUnregister, m.start), unmap())
		}
	}
	r.memories.Add(1)
	return m, nil
}

// Register implements gpu.Runtime. MMIO is registered as such only where it is: a controller in software has its BAR in
// ordinary memory, which the driver pins like any other.
func (r *Runtime) Register(b []byte, io bool) (gpu.Memory, error) {
	if err := checkSize(int64(len(b))); err != nil {
		return nil, err
	}
	start := uintptr(unsafe.Pointer(&b[0]))
	if start%hostPage != 0 || len(b)%hostPage != 0 {
		return nil, fmt.Errorf("cuda runtime: register %d bytes at %#x: both must be multiples of the page size %d", len(b), start, hostPage)
	}
	flags := uintptr(hostPortable | hostDeviceMap)
	if io {
		mmio, err := dynlib.IsMMIO(start)
		if err != nil {
			return nil, fmt.Errorf("cuda runtime: register %d bytes at %#x: %w", len(b), start, err)
		}
		if mmio {
			flags |= hostIOMemory
		}
	}
	m := &hostMemory{r: r, kind: gpu.HostPinned, size: int64(len(b)), start: start, host: b}
	if err := r.pin(m, int64(len(b)), flags); err != nil {
		return nil, err
	}
	m.free = func() error { return r.do("cuMemHostUnregister", r.lib.memHostUnregister, m.start) }
	r.memories.Add(1)
	return m, nil
}

// pin registers the pages of m and finds their device address.
func (r *Runtime) pin(m *hostMemory, length int64, flags uintptr) error {
	if err := r.do("cuMemHostRegister", r.lib.memHostRegister, m.start, uintptr(length), flags); err != nil {
		return fmt.Errorf("cuda runtime: register %d bytes at %#x: %w", length, m.start, err)
	}
	if err := r.deviceAddress(m); err != nil {
		return errors.Join(err, r.do("cuMemHostUnregister", r.lib.memHostUnregister, m.start))
	}
	return nil
}

func (r *Runtime) deviceAddress(m *hostMemory) error {
	var a uint64
	if err := r.do("cuMemHostGetDevicePointer", r.lib.memHostGetDevicePointer, uintptr(unsafe.Pointer(&a)), m.start, 0); err != nil {
		return fmt.Errorf("cuda runtime: the device's address of %s memory: %w", m.kind, err)
	}
	m.addr = gpu.Addr(a)
	return nil
}

func (m *hostMemory) Kind() gpu.MemKind { return m.kind }
func (m *hostMemory) Size() int64       { return m.size }
func (m *hostMemory) Addr() gpu.Addr    { return m.addr }
func (m *hostMemory) Host() []byte      { return m.host }

// Export implements gpu.Memory: the driver exports device memory only.
func (m *hostMemory) Export(gpu.ExportKind) (gpu.Export, error) {
	return gpu.Export{}, fmt.Errorf("cuda runtime: %s memory cannot be exported: allocate a device kind", m.kind)
}

// Close implements gpu.Memory. It waits for kernels that run. A second Close is an error: by then the address may be
// another's.
func (m *hostMemory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("cuda runtime: %s memory: %w", m.kind, os.ErrClosed)
	}
	m.closed = true
	m.host = nil
	m.r.memories.Add(-1)
	if err := m.free(); err != nil {
		return fmt.Errorf("cuda runtime: free %s memory: %w", m.kind, err)
	}
	return nil
}

func checkSize(size int64) error {
	if size <= 0 || size > 1<<46 {
		return fmt.Errorf("cuda runtime: %d bytes of memory: must be between 1 and 2^46", size)
	}
	return nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
