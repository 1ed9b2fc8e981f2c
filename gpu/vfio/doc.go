// Package vfio is PCI functions that this process opens by Linux's VFIO: their BARs as memory, and memory as their DMA reaches it through
// the IOMMU. It knows nothing of what a function does: nvmeq/pcie drives NVMe controllers with it, and lanefs mount --vram takes the BAR
// of another function for a GPU's memory.
//
// A Device is one function, opened for this process alone. It has an IOMMU address space, by one of two backends, chosen by what the
// machine offers: IOMMUFD (the function's own node in /dev/vfio/devices, an IOAS) or type1 (the function's group and a container), which
// is what stock Debian kernels have. An address space maps IOVAs, which this package allocates, to memory: by user address, or by the
// file behind it, a memfd or a DMA-BUF. A BAR is exported as a DMA-BUF, so that another device can reach it.
//
// The way from an address to DMA:
//
//  1. Open          reads the function from sysfs (package pci) and checks that vfio-pci has it
//  2. attach        chooses the backend (space.go), and opens the function and its address space (iommufd.go, type1.go)
//  3. open          asks VFIO what the function is and which IOVAs are usable, less all BARs of the machine (iova.go)
//  4. enable        sets memory space and bus mastering in the command register (command.go)
//  5. mapRegion     maps the BAR into the process (region.go)
//  6. startWatch    waits for a removal or a bus error (watch.go)
//  7. Map           allocates an IOVA and maps memory there, in the best way that the memory has (dma.go)
//  8. Unmap         ends the mapping, then frees the IOVA
//  9. Close         undoes it all: bus mastering, BAR, descriptor, address space
//
// A device that is taken away, by hot unplug or by an error that the bus reports, is let go at once: its BAR's addresses
// stay valid and read as all ones, as a dead device's would, and nothing is sent any more. Its users get errors,
// never a fault.
//
// The caller of Open calls Close. All methods may be called from any goroutine.
//
// Specifications: linux/vfio.h and linux/iommufd.h of Linux 7.2 ("uapi"); PCI Express Base 5.0 ("PCIe").
package vfio
