package cuda

import "structs"

// result is CUresult.
type result int32

const (
	success     result = 0
	outOfMemory result = 2
	notReady    result = 600
)

// CUdevice_attribute.
const (
	attrWarpSize     = 10
	attrUnits        = 16 // MULTIPROCESSOR_COUNT
	attrUnified      = 41 // UNIFIED_ADDRESSING
	attrMajor        = 75 // COMPUTE_CAPABILITY_MAJOR
	attrMinor        = 76
	attrVMM          = 102 // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	attrPosixHandles = 103 // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	attrRDMAWithVMM  = 110 // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	attrDMABUF       = 124 // DMA_BUF_SUPPORTED
)

const (
	hostPortable  = 1 // CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE
	hostDeviceMap = 2 // ..._DEVICEMAP
	hostIOMemory  = 4 // CU_MEMHOSTREGISTER_IOMEMORY

	allocationPinned = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	locationDevice   = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	handlePosixFD    = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	rangeDMABUF      = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
	accessReadWrite  = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE

	streamNonBlocking = 1 // CU_STREAM_NON_BLOCKING
)

// location is CUmemLocation.
type location struct {
	_    structs.HostLayout
	Type uint32
	ID   int32
}

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	_           structs.HostLayout
	Type        uint32
	HandleTypes uint32
	Location    location
	Win32       uintptr
	Compression uint8
	RDMACapable uint8
	Usage       uint16
	Reserved    [4]uint8
}

// accessDesc is CUmemAccessDesc.
type accessDesc struct {
	_        structs.HostLayout
	Location location
	Flags    uint32
}
