// Package pcie is NVMe controllers on PCI functions: a Function is the controller.Transport of one, over gpu/vfio. Its registers are BAR 0,
// its DMA goes through the IOMMU.
//
// Specification: NVM Express NVMe over PCIe Transport Specification 1.0.
package pcie

import (
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Function is an NVMe controller that this process has opened. Its methods may be called from any goroutine.
type Function struct{ *vfio.Device }

var (
	_ controller.Transport   = (*Function)(nil)
	_ controller.BARExporter = (*Function)(nil)
	_ controller.Leaver      = (*Function)(nil)
)

// bar is where an NVMe controller has its registers and doorbells (§3.1.1: BAR0 and BAR1 are one 64-bit address).
const bar = 0

// Open opens the function at addr, which must be bound to vfio-pci. The caller closes it. Options.BAR is not used.
func Open(addr string, opt vfio.Options) (*Function, error) {
	opt.BAR = bar
	d, err := vfio.Open(addr, opt)
	if err != nil {
		return nil, err
	}
	return &Function{d}, nil
}

// Map makes n bytes of m from off reachable by the controller. off and n are multiples of 4096.
func (f *Function) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	at, err := f.Device.Map(m, off, n)
	return nvme.IOVA(at), err
}

// Unmap ends a mapping. The controller must not use it any more.
func (f *Function) Unmap(a nvme.IOVA) error { return f.Device.Unmap(vfio.IOVA(a)) }

// ExportBAR is BAR 0 as a DMA-BUF, which the caller closes. It is revoked when the function is reset or closed.
func (f *Function) ExportBAR() (gpu.Export, error) { return f.Export(bar, 0, int64(len(f.BAR()))) }
