package vfio

import "github.com/lanefs/lanefs/gpu/vfio/pci"

// space is an IOMMU address space with one device in it: IOMMUFD's or type1's. Addresses and sizes are in whole pages; the
// caller chose the IOVA.
type space interface {
	// mapUser maps n bytes of this process's memory at addr.
	mapUser(iova, addr, n uint64) error
	// mapFile maps n bytes from off of a memfd or a DMA-BUF. The file may be closed afterwards.
	mapFile(iova uint64, fd int, dmabuf bool, off, n uint64) error
	unmap(iova, n uint64) error
	// detach takes the device out, before its descriptor is closed.
	detach() error
	// close ends the address space. The device has been detached.
	close() error
	// name is "iommufd" or "type1".
	name() string
}

// attachment is what opening a function through either way gives.
type attachment struct {
	device    int // descriptor; its owner closes it
	space     space
	usable    []interval
	pageSizes uint64
}

// Backend chooses between the ways to an IOMMU address space.
type Backend string

const (
	Auto    Backend = ""        // IOMMUFD where the machine offers it, else type1
	IOMMUFD Backend = "iommufd" // the function's node in /dev/vfio/devices
	Type1   Backend = "type1"   // its group and a container
)

// Offered says which of the two this machine offers for f, the better first, and why not the others.
func Offered(f *pci.Function) (ways []Backend, why map[Backend]error) { return thisMachine.offered(f) }

func (m machine) offered(f *pci.Function) (ways []Backend, why map[Backend]error) {
	why = map[Backend]error{}
	if err := m.offersIOMMUFD(f); err != nil {
		why[IOMMUFD] = err
	} else {
		ways = append(ways, IOMMUFD)
	}
	if err := m.offersType1(f); err != nil {
		why[Type1] = err
	} else {
		ways = append(ways, Type1)
	}
	return ways, why
}
