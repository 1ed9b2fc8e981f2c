package cuda

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
	attrFlushOptions = 117 // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
	attrOrdering     = 118 // GPU_DIRECT_RDMA_WRITES_ORDERING
	attrDMABUF       = 124 // DMA_BUF_SUPPORTED
)

const (
	orderedToOwner = 100 // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: the device itself sees such writes in order
	flushByHost    = 1   // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: the function of that name works
	flushContext   = 0   // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
	flushToOwner   = 100 // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
)

const rangeDMABUF = 1 // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

const mpsNotReady = 807 // CUDA_ERROR_MPS_SERVER_NOT_READY
