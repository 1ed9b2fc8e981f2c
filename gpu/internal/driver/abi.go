package driver

import "structs"

// Flags and structures that both vendors give the same values and layouts: CU_MEMHOSTALLOC_*, CU_MEMHOSTREGISTER_* and
// hipHostMalloc*, hipHostRegister*; CUmemAllocationProp and hipMemAllocationProp (of ROCm 6 and newer).
const (
	HostPortable = 1
	HostMapped   = 2
	hostIOMemory = 4 // registering
	HostReadOnly = 8 // registering

	AllocationPinned = 1
	LocationDevice   = 1
	HandlePosixFD    = 1
	accessReadWrite  = 3

	streamNonBlocking = 1
)

// Location is CUmemLocation, hipMemLocation.
type Location struct {
	_    structs.HostLayout
	Type uint32
	ID   int32
}

// AllocationProp is CUmemAllocationProp, hipMemAllocationProp.
type AllocationProp struct {
	_           structs.HostLayout
	Type        uint32
	HandleTypes uint32
	Location    Location
	Win32       uintptr
	Compression uint8
	RDMACapable uint8
	Usage       uint16
	Reserved    [4]uint8
}

// AccessDesc is CUmemAccessDesc, hipMemAccessDesc.
type AccessDesc struct {
	_        structs.HostLayout
	Location Location
	Flags    uint32
}
