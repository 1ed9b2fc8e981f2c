// Package cuda is the gpu.Runtime of NVIDIA GPUs, over the CUDA driver API (libcuda.so.1, bound at run time).
//
// Memory. Device memory of every kind is a VMM range: physical memory (cuMemCreate) mapped at a reserved address
// (cuMemMap). NVIDIA's device memory is coherent for system-scope accesses and is not cached outside the device, so the
// kinds differ in name only; what counts is that giving VMM memory back does not wait for running kernels, as cuMemFree
// does for ever while a resident kernel runs. The CPU cannot address device memory. Host memory is pinned: cuMemHostAlloc,
// or ordinary pages and cuMemHostRegister for HostPinned. With unified addressing an address names one place for all.
//
// Contexts and threads. The device's primary context is retained, so other users of CUDA in the process share it. A
// context is current on a thread, and goroutines move between threads: every call makes it current first, on a locked
// thread.
//
// A running kernel holds up calls that wait for the device: cuMemFreeHost, cuMemHostUnregister, module unloading, the
// first, lazy loading of a function. Functions are therefore loaded with their module, and whoever keeps a kernel
// resident parks it before he closes memory or modules.
//
// Specification: CUDA Driver API 13.0 [CUDA].
package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lanefs/lanefs/gpu"
)

// Options are what can be chosen of the device; the zero value is good.
type Options struct {
	Device int // ordinal, as CUDA_VISIBLE_DEVICES leaves them
}

// Runtime implements gpu.Runtime.
type Runtime struct {
	lib   *library
	dev   int32
	ctx   uintptr
	facts gpu.Facts
	prop  allocationProp // of device memory

	memories atomic.Int64 // open
	modules  atomic.Int64 // open
	streams  atomic.Int64 // open
	mu       sync.RWMutex // held for reading by every call, for writing by Close
	closed   bool         // protected by mu
}

// minDriver is CUDA 11.0: the first that takes the kernels' PTX (ISA 7.0).
const minDriver = 11000

// Open opens a device. The error says in one line what is missing: the driver, a new enough driver, a device.
func Open(o Options) (*Runtime, error) {
	lib, err := open()
	if err != nil {
		return nil, fmt.Errorf("cuda runtime: %w", err)
	}
	r := &Runtime{lib: lib}
	if err := r.openDevice(o.Device); err != nil {
		return nil, fmt.Errorf("cuda runtime: %w", err)
	}
	return r, nil
}

func (r *Runtime) openDevice(ordinal int) error {
	l := r.lib
	var n int32
	if err := l.check("cuDeviceGetCount", l.raw(l.deviceGetCount, uintptr(unsafe.Pointer(&n)))); err != nil {
		return err
	}
	if ordinal < 0 || ordinal >= int(n) {
		return fmt.Errorf("device %d does not exist: the driver shows %d (CUDA_VISIBLE_DEVICES is %q)", ordinal, n, os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	if err := l.check("cuDeviceGet", l.raw(l.deviceGet, uintptr(unsafe.Pointer(&r.dev)), uintptr(ordinal))); err != nil {
		return err
	}
	if err := r.readFacts(); err != nil {
		return err
	}
	if err := l.check("cuDevicePrimaryCtxRetain", l.raw(l.primaryCtxRetain, uintptr(unsafe.Pointer(&r.ctx)), uintptr(r.dev))); err != nil {
		return err
	}
	return nil
}

// readFacts asks for what the kernels and the memory kinds need, and refuses a device that lacks it.
func (r *Runtime) readFacts() error {
	l := r.lib
	var name [256]byte
	if err := l.check("cuDeviceGetName", l.raw(l.deviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(r.dev))); err != nil {
		return err
	}
	r.facts.Name = goString(name[:])
	var bus [32]byte
	if err := l.check("cuDeviceGetPCIBusId", l.raw(l.deviceGetPCIBusID, uintptr(unsafe.Pointer(&bus[0])), uintptr(len(bus)), uintptr(r.dev))); err != nil {
		return err
	}
	var total uint64
	if err := l.check("cuDeviceTotalMem", l.raw(l.deviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(r.dev))); err != nil {
		return err
	}
	a, err := r.attributes(attrMajor, attrMinor, attrWarpSize, attrUnits, attrVMM, attrPosixHandles, attrRDMAWithVMM, attrDMABUF, attrUnified)
	if err != nil {
		return err
	}
	if a[attrVMM] == 0 || a[attrUnified] == 0 {
		return fmt.Errorf("%s has no virtual memory management or no unified addressing, which LaneFS needs", r.facts.Name)
	}
	r.prop = allocationProp{Type: allocationPinned, Location: location{Type: locationDevice, ID: r.dev}}
	if a[attrPosixHandles] != 0 {
		r.prop.HandleTypes = handlePosixFD
		r.facts.Exports = append(r.facts.Exports, gpu.ExportPOSIX)
	}
	if a[attrRDMAWithVMM] != 0 {
		r.prop.RDMACapable = 1
	}
	if a[attrDMABUF] != 0 && l.memGetHandleForAddressRange != 0 {
		r.facts.Exports = append(r.facts.Exports, gpu.ExportDMABUF)
	}
	var granularity uint64
	if err := l.check("cuMemGetAllocationGranularity", l.raw(l.memGetAllocationGranularity, uintptr(unsafe.Pointer(&granularity)), uintptr(unsafe.Pointer(&r.prop)), 0)); err != nil {
		return err
	}
	f := &r.facts
	f.Arch = fmt.Sprintf("sm_%d%d", a[attrMajor], a[attrMinor])
	f.Runtime = "CUDA driver API " + l.versionString()
	f.PCI = pciAddress(goString(bus[:]))
	f.Memory, f.Granularity = int64(total), int64(granularity)
	f.WaveSize, f.Units = int(a[attrWarpSize]), int(a[attrUnits])
	f.Imports = []gpu.ExportKind{gpu.ExportPOSIX}
	f.ClockHz = 1e9 // %globaltimer
	return nil
}

func (r *Runtime) attributes(which ...uint32) (map[uint32]int32, error) {
	got := map[uint32]int32{}
	for _, a := range which {
		var v int32
		if err := r.lib.check("cuDeviceGetAttribute", r.lib.raw(r.lib.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(r.dev))); err != nil {
			return nil, err
		}
		got[a] = v
	}
	return got, nil
}

// Name implements gpu.Runtime.
func (*Runtime) Name() string { return "cuda" }

// Facts implements gpu.Runtime.
func (r *Runtime) Facts() gpu.Facts { return r.facts }

// Missing says which optional functions the driver lacks, a sentence each.
func (r *Runtime) Missing() []string { return r.lib.lib.Missing }

// Close implements gpu.Runtime. What is still open then is an error: its owner has lost track of it.
func (r *Runtime) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("cuda runtime: %w", os.ErrClosed)
	}
	r.closed = true
	var errs []error
	if n, m, s := r.memories.Load(), r.modules.Load(), r.streams.Load(); n != 0 || m != 0 || s != 0 {
		errs = append(errs, fmt.Errorf("cuda runtime: closed with %d memories, %d modules and %d streams still open", n, m, s))
	}
	if err := r.lib.check("cuDevicePrimaryCtxRelease", r.lib.raw(r.lib.primaryCtxRelease, uintptr(r.dev))); err != nil {
		errs = append(errs, fmt.Errorf("cuda runtime: %w", err))
	}
	return errors.Join(errs...)
}

// do calls fn with the context current, unless the runtime is closed.
//
//go:uintptrescapes
func (r *Runtime) do(what string, fn uintptr, args ...uintptr) error {
	code, err := r.status(what, fn, args...)
	if err != nil {
		return err
	}
	return r.lib.check(what, code)
}

// status is do for calls whose result is not always an error.
//
//go:uintptrescapes
func (r *Runtime) status(what string, fn uintptr, args ...uintptr) (result, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return 0, fmt.Errorf("%s: %w", what, os.ErrClosed)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if code, _, _ := purego.SyscallN(r.lib.ctxSetCurrent, r.ctx); result(code) != success {
		return 0, r.lib.check("cuCtxSetCurrent", result(code))
	}
	code, _, _ := purego.SyscallN(fn, args...)
	return result(code), nil
}
