package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// library is libcuda. There is one per process, opened at first use.
type library struct {
	driver.API
	lib     *dynlib.Library
	version int32 // 1000·major + 10·minor

	init, driverGetVersion, getErrorName, getErrorString                                            driver.Call
	deviceGetCount, deviceGet, deviceGetName, deviceGetPCIBusID, deviceTotalMem, deviceGetAttribute driver.Call
	primaryCtxRetain, primaryCtxRelease                                                             driver.Call
	deviceGetUUID, deviceGetUUID2                                                                   driver.Call
	allocationGranularity, handleForAddressRange                                                    driver.Call
	functionCount, enumerateFunctions, funcLoad, flushWrites                                        driver.Call
}

func (l *library) symbols() []dynlib.Symbol {
	const lazy = "functions are loaded at their first launch, which waits for resident kernels"
	return []dynlib.Symbol{
		l.deviceGetCount.Required("cuDeviceGetCount"), l.deviceGet.Required("cuDeviceGet"),
		l.deviceGetName.Required("cuDeviceGetName"), l.deviceGetPCIBusID.Required("cuDeviceGetPCIBusId"),
		l.deviceGetUUID.Required("cuDeviceGetUuid"), l.deviceGetUUID2.Optional("cuDeviceGetUuid_v2", "CUDA 11.4", "MIG instances are not told apart"),
		l.deviceTotalMem.Required("cuDeviceTotalMem_v2"), l.deviceGetAttribute.Required("cuDeviceGetAttribute"),
		l.primaryCtxRetain.Required("cuDevicePrimaryCtxRetain"), l.primaryCtxRelease.Required("cuDevicePrimaryCtxRelease_v2"),
		l.SetCurrent.Required("cuCtxSetCurrent"),
		l.HostRegister.Required("cuMemHostRegister_v2"), l.HostUnregister.Required("cuMemHostUnregister"),
		l.HostAddress.Required("cuMemHostGetDevicePointer_v2"), l.MemInfo.Required("cuMemGetInfo_v2"),
		l.Reserve.Required("cuMemAddressReserve"), l.FreeAddress.Required("cuMemAddressFree"),
		l.Create.Required("cuMemCreate"), l.Release.Required("cuMemRelease"),
		l.Map.Required("cuMemMap"), l.Unmap.Required("cuMemUnmap"), l.SetAccess.Required("cuMemSetAccess"),
		l.allocationGranularity.Required("cuMemGetAllocationGranularity"),
		l.Export.Required("cuMemExportToShareableHandle"), l.Import.Required("cuMemImportFromShareableHandle"),
		l.handleForAddressRange.Optional("cuMemGetHandleForAddressRange", "CUDA 11.7", "no DMA-BUF export"),
		l.flushWrites.Optional("cuFlushGPUDirectRDMAWrites", "CUDA 11.3", "no drive can write into device memory"),
		l.ModuleLoad.Required("cuModuleLoadData"), l.ModuleUnload.Required("cuModuleUnload"),
		l.ModuleFunction.Required("cuModuleGetFunction"),
		l.functionCount.Optional("cuModuleGetFunctionCount", "CUDA 12.4", lazy),
		l.enumerateFunctions.Optional("cuModuleEnumerateFunctions", "CUDA 12.4", lazy),
		l.funcLoad.Optional("cuFuncLoad", "CUDA 12.4", lazy),
		l.StreamCreate.Required("cuStreamCreate"), l.StreamDestroy.Required("cuStreamDestroy_v2"),
		l.StreamQuery.Required("cuStreamQuery"), l.Launch.Required("cuLaunchKernel"),
		l.StreamPriority.Required("cuStreamCreateWithPriority"), l.PriorityRange.Required("cuCtxGetStreamPriorityRange"),
		l.Occupancy.Required("cuOccupancyMaxActiveBlocksPerMultiprocessor"),
		l.Synchronize.Required("cuCtxSynchronize"),
		l.Copy.Required("cuMemcpyAsync"), l.SetD8.Required("cuMemsetD8Async"),
		l.Copy2D.Required("cuMemcpy2DAsync_v2"),
		l.WriteValue.Optional("cuStreamWriteValue32_v2", "CUDA 11.7", "the end of copies is asked for"),
		l.OpenIPC.Required("cuIpcOpenMemHandle_v2"), l.CloseIPC.Required("cuIpcCloseMemHandle"), l.AddressRange.Required("cuMemGetAddressRange_v2"),
	}
}

// open opens libcuda once. A failure is kept too: cuInit does not change its mind within a process.
var open = sync.OnceValues(func() (*library, error) {
	// Read by cuInit. More connections, because streams that share one wait for each other, and a resident kernel does
	// not end; eager loading, because lazy loading waits for it.
	dynlib.Setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
	dynlib.Setenv("CUDA_MODULE_LOADING", "EAGER")
	lib, err := dynlib.Open("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's driver is not on this machine: %w; install it, or use --gpu host", err)
	}
	l := &library{lib: lib}
	l.Name, l.Describe = "cuda", l.describe
	if err := lib.Bind("unknown version", []dynlib.Symbol{
		l.init.Required("cuInit"), l.driverGetVersion.Required("cuDriverGetVersion"),
		l.getErrorName.Required("cuGetErrorName"), l.getErrorString.Required("cuGetErrorString"),
	}); err != nil {
		return nil, err
	}
	if err := l.Early(l.driverGetVersion, uintptr(unsafe.Pointer(&l.version))); err != nil {
		return nil, err
	}
	if l.version < minDriver {
		return nil, fmt.Errorf("the driver supports CUDA %s, LaneFS's kernels need 11.0: update the driver, or use --gpu host", l.versionString())
	}
	if err := lib.Bind("CUDA "+l.versionString(), l.symbols()); err != nil {
		return nil, err
	}
	if err := l.Early(l.init, 0); err != nil {
		hint := ""
		if e := new(driver.Error); errors.As(err, &e) && e.Code == mpsNotReady {
			hint = "; after a fault MPS takes no program until all that ran with it have ended: echo get_server_list | nvidia-cuda-mps-control, and ps with that server's number, shows them"
		}
		return nil, fmt.Errorf("the driver is there, but no GPU can be used: %w%s", err, hint)
	}
	return l, nil
})

func (l *library) versionString() string {
	return fmt.Sprintf("%d.%d", l.version/1000, l.version%1000/10)
}

// describe is the driver's name and words for a CUresult.
func (l *library) describe(code int32) (string, string) {
	var name, text uintptr
	driver.Raw(l.getErrorName, uintptr(code), uintptr(unsafe.Pointer(&name)))
	driver.Raw(l.getErrorString, uintptr(code), uintptr(unsafe.Pointer(&text)))
	return dynlib.String(name), dynlib.String(text)
}

// pciAddress turns NVIDIA's "00000000:C1:00.0" into the kernel's "0000:c1:00.0".
func pciAddress(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return s
}
