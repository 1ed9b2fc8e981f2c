package hip

import "structs"

// hipDeviceAttribute_t of ROCm 5 to 7.
const (
	attrUnits         = 63 // MultiprocessorCount
	attrWarpSize      = 87
	attrVMM           = 89 // VirtualMemoryManagementSupported
	attrLargeBAR      = 10011
	attrWallClockRate = 10017 // kHz
)

const (
	hostCoherent = 0x40000000 // hipHostMallocCoherent
	hostUncached = 0x10000000 // hipHostMallocUncached, since ROCm 7

	deviceDefault  = 0 // hipDeviceMallocDefault
	deviceFine     = 1 // hipDeviceMallocFinegrained
	deviceUncached = 3 // hipDeviceMallocUncached

	memcpyDefault = 4

	hsaAgentInfoName    = 0
	hsaAgentInfoHDP     = 0xa00e // HSA_AMD_AGENT_INFO_HDP_FLUSH
	dmabufMappingPCIe   = 1      // HSA_AMD_DMABUF_MAPPING_TYPE_PCIE
	pointerTypeUnknown  = 0      // HSA_EXT_POINTER_TYPE_UNKNOWN
	hsaAgentNameLength  = 64
	hipErrorOutOfMemory = 2
)

// agent is hsa_agent_t.
type agent struct {
	_      structs.HostLayout
	Handle uint64
}

// pointerInfo is hsa_amd_pointer_info_t.
type pointerInfo struct {
	_         structs.HostLayout
	Size      uint32 // of this structure
	Type      uint32
	AgentBase uintptr
	HostBase  uintptr
	Bytes     uint64 // of the allocation
	UserData  uintptr
	Owner     agent
	Flags     uint32
}

// hdpFlush is hsa_amd_hdp_flush_t: the addresses of two registers.
type hdpFlush struct {
	_        structs.HostLayout
	Mem, Reg *uint32
}

// ipcHandle is hsa_amd_ipc_memory_t.
type ipcHandle struct {
	_     structs.HostLayout
	Words [8]uint32
}
