// Package cuda is the gpu.Runtime of NVIDIA GPUs, over the CUDA driver API (libcuda.so.1, bound at run time).
//
// Memory. Device memory of every kind is a VMM range: physical memory (cuMemCreate) mapped at a reserved address
// (cuMemMap). NVIDIA's device memory is coherent for system-scope accesses and is not cached outside the device, so the
// kinds differ in name only; what counts is that giving VMM memory back does not wait for running kernels, as cuMemFree
// does for ever while a resident kernel runs. The CPU cannot address device memory. Host memory is ordinary pages and cuMemHostRegister:
// what cuMemHostAlloc gives would go with a lost context, while the CPU uses it. With unified addressing an address names one place for all.
//
// Contexts and threads. The device's primary context is retained, so other users of CUDA in the process share it. A
// context is current on a thread, and goroutines move between threads: every call makes it current first, on a locked
// thread.
//
// A running kernel holds up calls that wait for the device: cuMemHostUnregister, module unloading, the
// first, lazy loading of a function. Functions are therefore loaded with their module, and the owner of a resident
// kernel parks it before it closes memory or modules.
//
// Specification: CUDA Driver API 13.0 [CUDA].
package cuda

import (
	"fmt"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// Options are what can be chosen of the device; the zero value is good.
type Options struct {
	// Device is an ordinal, as CUDA_VISIBLE_DEVICES leaves them, a UUID or the beginning of one, or a PCI address; empty: the first. A MIG instance
	// is seen only if CUDA_VISIBLE_DEVICES names it, or is not set and nothing has opened the library before.
	Device string
}

// Runtime implements gpu.Runtime.
type Runtime struct {
	*driver.Device
	lib *library
}

// minDriver is CUDA 11.0: the first that takes the kernels' PTX (ISA 7.0).
const minDriver = 11000

// Open opens a device. The error says in one line what is missing: the driver, a new enough driver, a device.
func Open(o Options) (*Runtime, error) {
	if gpu.IsMIG(o.Device) {
		dynlib.Setenv("CUDA_VISIBLE_DEVICES", o.Device)
	}
	lib, err := open()
	if err != nil {
		return nil, fmt.Errorf("cuda runtime: %w", err)
	}
	c, err := lib.openDevice(o.Device)
	if err != nil {
		return nil, fmt.Errorf("cuda runtime: %w", err)
	}
	return &Runtime{Device: driver.New(c), lib: lib}, nil
}

func (l *library) openDevice(which string) (c driver.Config, err error) {
	dev, err := l.find(which)
	if err != nil {
		return c, err
	}
	c = driver.Config{API: &l.API, Loaded: l.loadFunctions, Lose: true}
	if err := l.readFacts(&c, dev); err != nil {
		return c, err
	}
	if err := l.Early(l.primaryCtxRetain, uintptr(unsafe.Pointer(&c.Current)), uintptr(dev)); err != nil {
		return c, err
	}
	c.Release = func() error { return l.Early(l.primaryCtxRelease, uintptr(dev)) }
	c.ExportDMABUF = l.exportDMABUF
	c.Arrived = l.arrived(dev)
	return c, nil
}

// readFacts asks for what the kernels and the memory kinds need, and refuses a device that lacks it.
func (l *library) readFacts(c *driver.Config, dev int32) error {
	f := &c.Facts
	var name [256]byte
	if err := l.Early(l.deviceGetName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(dev)); err != nil {
		return err
	}
	f.Name = dynlib.Buffer(name[:])
	at, err := l.listed(dev)
	if err != nil {
		return err
	}
	var total uint64
	if err := l.Early(l.deviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(dev)); err != nil {
		return err
	}
	a, err := l.attributes(dev, attrMajor, attrMinor, attrWarpSize, attrUnits, attrVMM, attrPosixHandles, attrRDMAWithVMM, attrDMABUF, attrUnified)
	if err != nil {
		return err
	}
	if a[attrVMM] == 0 || a[attrUnified] == 0 {
		return fmt.Errorf("%s has no virtual memory management or no unified addressing, which LaneFS needs", f.Name)
	}
	c.Prop = driver.AllocationProp{Type: driver.AllocationPinned, Location: driver.Location{Type: driver.LocationDevice, ID: dev}}
	if a[attrPosixHandles] != 0 {
		c.Prop.HandleTypes = driver.HandlePosixFD
		f.Exports = append(f.Exports, gpu.ExportPOSIX)
	}
	if a[attrRDMAWithVMM] != 0 {
		c.Prop.RDMACapable = 1
	}
	if a[attrDMABUF] != 0 && l.handleForAddressRange.Have() {
		f.Exports = append(f.Exports, gpu.ExportDMABUF)
	}
	var granularity uint64
	if err := l.Early(l.allocationGranularity, uintptr(unsafe.Pointer(&granularity)), uintptr(unsafe.Pointer(&c.Prop)), 0); err != nil {
		return err
	}
	f.Arch = fmt.Sprintf("sm_%d%d", a[attrMajor], a[attrMinor])
	f.Runtime = "CUDA driver API " + l.versionString()
	f.PCI, f.UUID = at.PCI, at.UUID
	f.Memory, f.Granularity = int64(total), int64(granularity)
	f.WaveSize, f.Units = int(a[attrWarpSize]), int(a[attrUnits])
	f.Imports = []gpu.ExportKind{gpu.ExportPOSIX, gpu.ExportLegacy}
	f.ClockHz = 1e9 // %globaltimer
	return nil
}

func (l *library) attributes(dev int32, which ...uint32) (map[uint32]int32, error) {
	got := map[uint32]int32{}
	for _, a := range which {
		var v int32
		if err := l.Early(l.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(dev)); err != nil {
			return nil, err
		}
		got[a] = v
	}
	return got, nil
}

// exportDMABUF exports mapped device memory.
func (l *library) exportDMABUF(d *driver.Device, addr gpu.Addr, size int64) (fd int32, err error) {
	if !l.handleForAddressRange.Have() {
		return 0, fmt.Errorf("as a DMA-BUF: %s needs CUDA 11.7, found %s", l.handleForAddressRange.Name, l.versionString())
	}
	err = d.Do(l.handleForAddressRange, uintptr(unsafe.Pointer(&fd)), uintptr(addr), uintptr(size), rangeDMABUF, 0)
	return fd, err
}

// loadFunctions loads every function of a module now, where the driver would leave it to the first launch.
func (l *library) loadFunctions(d *driver.Device, module uintptr) error {
	if !l.functionCount.Have() || !l.enumerateFunctions.Have() || !l.funcLoad.Have() {
		return nil
	}
	var n uint32
	if err := d.Do(l.functionCount, uintptr(unsafe.Pointer(&n)), module); err != nil || n == 0 {
		return err
	}
	all := make([]uintptr, n)
	if err := d.Do(l.enumerateFunctions, uintptr(unsafe.Pointer(&all[0])), uintptr(n), module); err != nil {
		return err
	}
	for _, f := range all {
		if err := d.Do(l.funcLoad, f); err != nil {
			return err
		}
	}
	return nil
}

// Missing says which optional functions the driver lacks, a sentence each.
func (r *Runtime) Missing() []string { return r.lib.lib.Missing }
