package vfio

import "structs"

// The kernel's structures and request numbers (linux/vfio.h). Each struct is one ioctl's argument; argsz is its size.

// vfioIO is _IO(VFIO_TYPE, VFIO_BASE+n).
const vfioIO = uintptr(';')<<8 + 100

const (
	ioGetAPIVersion     = vfioIO + 0
	ioCheckExtension    = vfioIO + 1
	ioSetIOMMU          = vfioIO + 2
	ioGroupGetStatus    = vfioIO + 3
	ioGroupSetContainer = vfioIO + 4
	ioGroupUnset        = vfioIO + 5
	ioGroupGetDeviceFD  = vfioIO + 6
	ioDeviceGetInfo     = vfioIO + 7
	ioGetRegionInfo     = vfioIO + 8
	ioSetIRQs           = vfioIO + 10
	ioDeviceReset       = vfioIO + 11
	ioIOMMUGetInfo      = vfioIO + 12
	ioMapDMA            = vfioIO + 13
	ioUnmapDMA          = vfioIO + 14
	ioDeviceFeature     = vfioIO + 17
	ioBindIOMMUFD       = vfioIO + 18
	ioAttachPT          = vfioIO + 19
	ioDetachPT          = vfioIO + 20
)

const (
	apiVersion      = 0
	extType1v2      = 3
	groupViable     = 1 << 0
	deviceFlagReset = 1 << 0
	deviceFlagPCI   = 1 << 1

	regionFlagMmap = 1 << 2
	regionFlagCaps = 1 << 3
	regionCapAreas = 1 // VFIO_REGION_INFO_CAP_SPARSE_MMAP
	regionConfig   = 7 // VFIO_PCI_CONFIG_REGION_INDEX

	irqError   = 3 // VFIO_PCI_ERR_IRQ_INDEX
	irqRequest = 4 // VFIO_PCI_REQ_IRQ_INDEX
	irqEventFD = 1<<2 | 1<<5

	featureGet    = 1 << 16
	featureDMABUF = 11

	type1CapRanges = 1 // VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE
	type1InfoPages = 1 << 0
	type1InfoCaps  = 1 << 1
	dmaRead        = 1 << 0
	dmaWrite       = 1 << 1
)

type groupStatus struct {
	_            structs.HostLayout
	argsz, flags uint32
}

type deviceInfo struct {
	_                                                 structs.HostLayout
	argsz, flags, numRegions, numIRQs, capOffset, pad uint32
}

type regionInfo struct {
	_                              structs.HostLayout
	argsz, flags, index, capOffset uint32
	size, offset                   uint64
}

// capHeader begins each capability of a chain; next is its successor's offset from the start of the info, 0 for none.
type capHeader struct {
	_           structs.HostLayout
	id, version uint16
	next        uint32
}

// listCap is a capability that is a list of pairs: sparse areas (offset, size) or IOVA ranges (first, last).
type listCap struct {
	_        structs.HostLayout
	header   capHeader
	n        uint32
	reserved uint32
}

type irqSet struct {
	_                                 structs.HostLayout
	argsz, flags, index, start, count uint32
	eventfd                           int32
}

// dmaBufRequest is vfio_device_feature with a vfio_device_feature_dma_buf of one range as its data.
type dmaBufRequest struct {
	_                                       structs.HostLayout
	argsz, flags                            uint32
	region, openFlags, bufFlags, rangeCount uint32
	offset, length                          uint64
}

type bindIOMMUFD struct {
	_            structs.HostLayout
	argsz, flags uint32
	iommufd      int32
	devID        uint32
}

type attachPT struct {
	_                  structs.HostLayout
	argsz, flags, ptID uint32
}

type detachPT struct {
	_            structs.HostLayout
	argsz, flags uint32
}

type type1Info struct {
	_              structs.HostLayout
	argsz, flags   uint32
	pageSizes      uint64
	capOffset, pad uint32
}

type type1Map struct {
	_                 structs.HostLayout
	argsz, flags      uint32
	vaddr, iova, size uint64
}

type type1Unmap struct {
	_            structs.HostLayout
	argsz, flags uint32
	iova, size   uint64
}
