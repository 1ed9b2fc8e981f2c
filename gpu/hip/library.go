package hip

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"unsafe"

	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// library is libamdhip64 and libhsa-runtime64. There is one per process, opened at first use.
type library struct {
	driver.API
	hip, hsa *dynlib.Library
	version  int32 // 10,000,000·major + 100,000·minor + patch

	init, runtimeGetVersion, getErrorName, getErrorString                    driver.Call
	deviceCount, deviceName, devicePCIBusID, deviceTotalMem, deviceAttribute driver.Call
	deviceUUID                                                               driver.Call
	malloc, extMalloc, free, allocationGranularity                           driver.Call
	hsaInit, statusString, agentInfo, pointerInfo                            driver.Call
	interopMap, interopUnmap, exportDMABUF, exportDMABUF2, closeDMABUF       driver.Call
	ipcCreate, ipcAttach, ipcDetach                                          driver.Call
}

// minVersion is ROCm 6.0: the first that loads code objects of version 5 on all four architectures.
const minVersion = 60000000

// hipSymbols are HIP's functions.
func (l *library) hipSymbols() []dynlib.Symbol {
	const ipc = "what hipMalloc gave goes by way of a stage"
	const vmm = "no growing device memory, shared by DMA-BUFs or IPC handles"
	return []dynlib.Symbol{
		l.deviceCount.Required("hipGetDeviceCount"), l.deviceName.Required("hipDeviceGetName"),
		l.devicePCIBusID.Required("hipDeviceGetPCIBusId"), l.deviceTotalMem.Required("hipDeviceTotalMem"),
		l.deviceUUID.Optional("hipDeviceGetUuid", "ROCm 5.2", "no device is named by its UUID"),
		l.deviceAttribute.Required("hipDeviceGetAttribute"), l.SetCurrent.Required("hipSetDevice"),
		l.HostAlloc.Required("hipHostMalloc"), l.HostFree.Required("hipHostFree"),
		l.HostRegister.Required("hipHostRegister"), l.HostUnregister.Required("hipHostUnregister"),
		l.HostAddress.Required("hipHostGetDevicePointer"), l.MemInfo.Required("hipMemGetInfo"),
		l.malloc.Required("hipMalloc"), l.extMalloc.Required("hipExtMallocWithFlags"), l.free.Required("hipFree"),
		l.Reserve.Optional("hipMemAddressReserve", "ROCm 6.0", vmm), l.FreeAddress.Optional("hipMemAddressFree", "ROCm 6.0", vmm),
		l.Create.Optional("hipMemCreate", "ROCm 6.0", vmm), l.Release.Optional("hipMemRelease", "ROCm 6.0", vmm),
		l.Map.Optional("hipMemMap", "ROCm 6.0", vmm), l.Unmap.Optional("hipMemUnmap", "ROCm 6.0", vmm),
		l.SetAccess.Optional("hipMemSetAccess", "ROCm 6.0", vmm),
		l.allocationGranularity.Optional("hipMemGetAllocationGranularity", "ROCm 6.0", vmm),
		l.Export.Optional("hipMemExportToShareableHandle", "ROCm 6.0", vmm),
		l.Import.Optional("hipMemImportFromShareableHandle", "ROCm 6.0", vmm),
		l.ModuleLoad.Required("hipModuleLoadData"), l.ModuleUnload.Required("hipModuleUnload"),
		l.ModuleFunction.Required("hipModuleGetFunction"),
		l.StreamCreate.Required("hipStreamCreateWithFlags"), l.StreamDestroy.Required("hipStreamDestroy"),
		l.StreamQuery.Required("hipStreamQuery"), l.Launch.Required("hipModuleLaunchKernel"),
		l.StreamPriority.Required("hipStreamCreateWithPriority"), l.PriorityRange.Required("hipDeviceGetStreamPriorityRange"),
		l.Occupancy.Required("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"),
		l.Synchronize.Required("hipDeviceSynchronize"),
		l.Copy.Required("hipMemcpyAsync"), l.SetD8.Required("hipMemsetD8Async"),
		l.OpenIPC.Optional("hipIpcOpenMemHandle", "ROCm 6.0", ipc), l.CloseIPC.Optional("hipIpcCloseMemHandle", "ROCm 6.0", ipc),
		l.AddressRange.Optional("hipMemGetAddressRange", "ROCm 6.0", ipc),
	}
}

// hsaSymbols are the HSA runtime's functions.
func (l *library) hsaSymbols() []dynlib.Symbol {
	const none = "no DMA-BUF export of memory that is not VMM"
	return []dynlib.Symbol{
		l.hsaInit.Required("hsa_init"), l.statusString.Required("hsa_status_string"),
		l.agentInfo.Required("hsa_agent_get_info"), l.pointerInfo.Required("hsa_amd_pointer_info"),
		l.interopMap.Required("hsa_amd_interop_map_buffer"), l.interopUnmap.Required("hsa_amd_interop_unmap_buffer"),
		l.ipcCreate.Required("hsa_amd_ipc_memory_create"), l.ipcAttach.Required("hsa_amd_ipc_memory_attach"),
		l.ipcDetach.Required("hsa_amd_ipc_memory_detach"),
		l.exportDMABUF.Optional("hsa_amd_portable_export_dmabuf", "ROCm 5.3", none),
		l.closeDMABUF.Optional("hsa_amd_portable_close_dmabuf", "ROCm 5.3", none),
		l.exportDMABUF2.Optional("hsa_amd_portable_export_dmabuf_v2", "ROCm 7.1", "using v1"),
	}
}

// open opens the libraries once. A failure is kept too: hipInit does not change its mind within a process.
var open = sync.OnceValues(func() (*library, error) {
	// Streams share hardware queues, four by default, and wait for each other there; a resident kernel does not end.
	dynlib.Setenv("GPU_MAX_HW_QUEUES", "16")
	l := &library{}
	l.Name, l.Describe, l.CopyKind = "hip", l.describe, memcpyDefault
	var err error
	if l.hip, err = openNamed("libamdhip64", "7", "6", "5"); err != nil {
		return nil, fmt.Errorf("AMD's ROCm is not on this machine: %w; install it, or use --gpu host", err)
	}
	if err := l.hip.Bind("unknown version", []dynlib.Symbol{
		l.init.Required("hipInit"), l.runtimeGetVersion.Required("hipRuntimeGetVersion"),
		l.getErrorName.Required("hipGetErrorName"), l.getErrorString.Required("hipGetErrorString"),
	}); err != nil {
		return nil, err
	}
	if err := l.Early(l.runtimeGetVersion, uintptr(unsafe.Pointer(&l.version))); err != nil {
		return nil, err
	}
	if l.version < minVersion {
		return nil, fmt.Errorf("this is ROCm %s, LaneFS's kernels need 6.0: update ROCm, or use --gpu host", l.versionString())
	}
	if err := l.hip.Bind(l.versionString(), l.hipSymbols()); err != nil {
		return nil, err
	}
	if l.hsa, err = openNamed("libhsa-runtime64", "1"); err != nil {
		return nil, fmt.Errorf("ROCm's HSA runtime is not on this machine: %w; install it, or use --gpu host", err)
	}
	if err := l.hsa.Bind(l.versionString(), l.hsaSymbols()); err != nil {
		return nil, err
	}
	// ROCm 7.1 takes the descriptor itself, as CUDA does; before, HIP read it at an address (ROCm/rocm-systems PR 759).
	l.ImportByAddress = l.version < 70100000
	if err := l.Early(l.init, 0); err != nil {
		return nil, fmt.Errorf("ROCm %s is there, but no GPU can be used: %w%s", l.versionString(), err, lookKFD())
	}
	if err := l.hsaDo(l.hsaInit); err != nil {
		return nil, fmt.Errorf("ROCm %s is there, but no GPU can be used: %w%s", l.versionString(), err, lookKFD())
	}
	return l, nil
})

// openNamed opens a library by its versioned names, the newest first, where the loader looks and where ROCm puts it.
func openNamed(name string, versions ...string) (*dynlib.Library, error) {
	var names []string
	for _, dir := range []string{"", "/opt/rocm/lib/"} {
		for _, v := range versions {
			names = append(names, dir+name+".so."+v)
		}
	}
	return dynlib.Open(names...)
}

// lookKFD says what is wrong with the device file of AMD's driver, if anything is.
func lookKFD() string {
	const kfd = "/dev/kfd"
	f, err := os.OpenFile(kfd, os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return "; " + kfd + " is not there: there is no AMD GPU, or the kernel's amdgpu driver is not loaded"
	case errors.Is(err, fs.ErrPermission):
		return "; " + kfd + " must not be opened: be in the groups render and video"
	}
	return "; " + err.Error()
}

func (l *library) versionString() string {
	return fmt.Sprintf("%d.%d", l.version/10000000, l.version/100000%100)
}

// missing says which optional functions the libraries lack, a sentence each.
func (l *library) missing() []string { return slices.Concat(l.hip.Missing, l.hsa.Missing) }

// describe is HIP's name and words for a hipError_t.
func (l *library) describe(code int32) (string, string) {
	return dynlib.String(driver.RawPointer(l.getErrorName, uintptr(code))), dynlib.String(driver.RawPointer(l.getErrorString, uintptr(code)))
}
