package hip

import (
	"fmt"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// openDevice asks HIP for what the kernels and the memory kinds need.
func (l *library) openDevice(ordinal int) (c driver.Config, err error) {
	c = driver.Config{API: &l.API, Current: uintptr(ordinal)}
	f := &c.Facts
	var name [256]byte
	if err := l.Early(l.deviceName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)), uintptr(ordinal)); err != nil {
		return c, err
	}
	at, err := l.listed(ordinal)
	if err != nil {
		return c, err
	}
	var total uint64
	if err := l.Early(l.deviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(ordinal)); err != nil {
		return c, err
	}
	for _, a := range []struct {
		attr int
		to   *int
	}{{attrWarpSize, &f.WaveSize}, {attrUnits, &f.Units}} {
		if *a.to, err = l.attribute(ordinal, a.attr); err != nil {
			return c, err
		}
	}
	f.Name, f.PCI, f.UUID, f.Memory = dynlib.Buffer(name[:]), at.PCI, at.UUID, int64(total)
	f.Runtime = "ROCm " + l.versionString()
	// The counter that kernels read runs at 100 MHz on all four architectures, if the library does not say otherwise.
	f.ClockHz = 100e6
	if khz, err := l.attribute(ordinal, attrWallClockRate); err == nil && khz > 0 {
		f.ClockHz = int64(khz) * 1000
	}
	large, err := l.attribute(ordinal, attrLargeBAR)
	if err != nil {
		return c, err
	}
	f.LargeBAR = large != 0
	f.Imports = []gpu.ExportKind{gpu.ExportDMABUF, gpu.ExportIPC}
	if l.HasLegacy() {
		f.Imports = append(f.Imports, gpu.ExportLegacy)
	}
	if err := l.openVMM(&c, ordinal); err != nil {
		return c, err
	}
	dmabuf := c.NoVMM == "" // a POSIX handle is one
	if !dmabuf {
		if dmabuf, err = l.exportsDMABUF(ordinal); err != nil {
			return c, err
		}
	}
	if dmabuf {
		f.Exports = append(f.Exports, gpu.ExportDMABUF)
	}
	f.Exports = append(f.Exports, gpu.ExportIPC)
	return c, nil
}

// openVMM finds out whether there are VMM ranges, and of which granularity.
func (l *library) openVMM(c *driver.Config, ordinal int) error {
	for _, call := range []*driver.Call{&l.Reserve, &l.FreeAddress, &l.Create, &l.Release, &l.Map, &l.Unmap, &l.SetAccess, &l.allocationGranularity, &l.Export, &l.Import} {
		if !call.Have() {
			c.NoVMM = fmt.Sprintf("ROCm %s has no virtual memory management: device memory does not grow, and is shared by DMA-BUFs or IPC handles", l.versionString())
			return nil
		}
	}
	if has, err := l.attribute(ordinal, attrVMM); err != nil || has == 0 {
		c.NoVMM = fmt.Sprintf("%s has no virtual memory management with ROCm %s: device memory does not grow, and is shared by DMA-BUFs or IPC handles", c.Facts.Name, l.versionString())
		return nil
	}
	c.Prop = driver.AllocationProp{Type: driver.AllocationPinned, HandleTypes: driver.HandlePosixFD,
		Location: driver.Location{Type: driver.LocationDevice, ID: int32(ordinal)}}
	var granularity uint64
	if err := l.Early(l.allocationGranularity, uintptr(unsafe.Pointer(&granularity)), uintptr(unsafe.Pointer(&c.Prop)), 0); err != nil {
		return err
	}
	c.Facts.Granularity = int64(granularity)
	c.Facts.Exports = append(c.Facts.Exports, gpu.ExportPOSIX)
	c.Facts.Imports = append(c.Facts.Imports, gpu.ExportPOSIX)
	return nil
}

func (l *library) attribute(ordinal, which int) (int, error) {
	var v int32
	err := l.Early(l.deviceAttribute, uintptr(unsafe.Pointer(&v)), uintptr(which), uintptr(ordinal))
	return int(v), err
}
