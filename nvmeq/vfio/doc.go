// Package vfio is the nvmeq.Transport over a real PCI function: its registers through a mapped BAR, its DMA through the
// IOMMU, by Linux's VFIO.
//
// A Device is one function, opened for this process alone. Behind it is one of two ways to an IOMMU address space, chosen
// by what the machine offers: IOMMUFD (the function's own node in /dev/vfio/devices, an IOAS) or type1 (the function's
// group and a container), which is what stock Debian kernels have. An address space maps IOVAs, which this package
// allocates, to memory: by user address, or by the file behind it, a memfd or a DMA-BUF. A BAR goes out as a DMA-BUF too,
// so that another device can reach it.
//
// A device that is taken away, by hot unplug or by an error that the bus reports, is let go at once: its BAR's addresses
// stay valid and read as all ones, as a dead device's would, and nothing is sent any more. What used it sees a controller
// that is gone, never a fault.
//
// Whoever opens a Device closes it; Close undoes what Open did, in reverse. All methods may be called from any goroutine.
//
// Specifications: linux/vfio.h and linux/iommufd.h of Linux 7.2 ("uapi"); PCI Express Base 5.0 ("PCIe").
package vfio
