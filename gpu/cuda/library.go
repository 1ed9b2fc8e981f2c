package cuda

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/lanefs/lanefs/gpu/internal/dynlib"
)

// library is libcuda and the addresses of its functions. There is one per process, opened at first use.
type library struct {
	lib     *dynlib.Library
	version int32 // 1000·major + 10·minor

	init, driverGetVersion, getErrorName, getErrorString                                               uintptr
	deviceGetCount, deviceGet, deviceGetName, deviceGetPCIBusID, deviceTotalMem, deviceGetAttribute    uintptr
	primaryCtxRetain, primaryCtxRelease, ctxSetCurrent                                                 uintptr
	memHostAlloc, memFreeHost, memHostRegister, memHostUnregister, memHostGetDevicePointer, memGetInfo uintptr
	memAddressReserve, memAddressFree, memCreate, memRelease, memMap, memUnmap, memSetAccess           uintptr
	memGetAllocationGranularity, memExport, memImport, memGetHandleForAddressRange                     uintptr
	moduleLoadData, moduleUnload, moduleGetFunction                                                    uintptr
	moduleGetFunctionCount, moduleEnumerateFunctions, funcLoad                                         uintptr
	streamCreate, streamDestroy, streamQuery, launchKernel, memcpyAsync, memsetD8Async                 uintptr
}

func (l *library) symbols() []dynlib.Symbol {
	const lazy = "functions are loaded at their first launch, which waits for resident kernels"
	required := func(name string, a *uintptr) dynlib.Symbol { return dynlib.Symbol{Name: name, Addr: a} }
	return []dynlib.Symbol{
		required("cuDeviceGetCount", &l.deviceGetCount), required("cuDeviceGet", &l.deviceGet),
		required("cuDeviceGetName", &l.deviceGetName), required("cuDeviceGetPCIBusId", &l.deviceGetPCIBusID),
		required("cuDeviceTotalMem_v2", &l.deviceTotalMem), required("cuDeviceGetAttribute", &l.deviceGetAttribute),
		required("cuDevicePrimaryCtxRetain", &l.primaryCtxRetain), required("cuDevicePrimaryCtxRelease_v2", &l.primaryCtxRelease),
		required("cuCtxSetCurrent", &l.ctxSetCurrent),
		required("cuMemHostAlloc", &l.memHostAlloc), required("cuMemFreeHost", &l.memFreeHost),
		required("cuMemHostRegister_v2", &l.memHostRegister), required("cuMemHostUnregister", &l.memHostUnregister),
		required("cuMemHostGetDevicePointer_v2", &l.memHostGetDevicePointer), required("cuMemGetInfo_v2", &l.memGetInfo),
		required("cuMemAddressReserve", &l.memAddressReserve), required("cuMemAddressFree", &l.memAddressFree),
		required("cuMemCreate", &l.memCreate), required("cuMemRelease", &l.memRelease),
		required("cuMemMap", &l.memMap), required("cuMemUnmap", &l.memUnmap), required("cuMemSetAccess", &l.memSetAccess),
		required("cuMemGetAllocationGranularity", &l.memGetAllocationGranularity),
		required("cuMemExportToShareableHandle", &l.memExport), required("cuMemImportFromShareableHandle", &l.memImport),
		{Name: "cuMemGetHandleForAddressRange", Addr: &l.memGetHandleForAddressRange, Since: "CUDA 11.7", For: "no DMA-BUF export"},
		required("cuModuleLoadData", &l.moduleLoadData), required("cuModuleUnload", &l.moduleUnload),
		required("cuModuleGetFunction", &l.moduleGetFunction),
		{Name: "cuModuleGetFunctionCount", Addr: &l.moduleGetFunctionCount, Since: "CUDA 12.4", For: lazy},
		{Name: "cuModuleEnumerateFunctions", Addr: &l.moduleEnumerateFunctions, Since: "CUDA 12.4", For: lazy},
		{Name: "cuFuncLoad", Addr: &l.funcLoad, Since: "CUDA 12.4", For: lazy},
		required("cuStreamCreate", &l.streamCreate), required("cuStreamDestroy_v2", &l.streamDestroy),
		required("cuStreamQuery", &l.streamQuery), required("cuLaunchKernel", &l.launchKernel),
		required("cuMemcpyAsync", &l.memcpyAsync), required("cuMemsetD8Async", &l.memsetD8Async),
	}
}

// open opens libcuda once. A failure is kept too: cuInit does not change its mind within a process.
var open = sync.OnceValues(func() (*library, error) {
	// Read by cuInit. More connections, because streams that share one wait for each other, and a resident kernel does
	// not end; eager loading, because lazy loading waits for it.
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
	setenv("CUDA_MODULE_LOADING", "EAGER")
	lib, err := dynlib.Open("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1")
	if err != nil {
		return nil, fmt.Errorf("NVIDIA's driver is not on this machine: %w; install it, or use --gpu host", err)
	}
	l := &library{lib: lib}
	if err := lib.Bind("unknown version", []dynlib.Symbol{
		{Name: "cuInit", Addr: &l.init}, {Name: "cuDriverGetVersion", Addr: &l.driverGetVersion},
		{Name: "cuGetErrorName", Addr: &l.getErrorName}, {Name: "cuGetErrorString", Addr: &l.getErrorString},
	}); err != nil {
		return nil, err
	}
	if err := l.check("cuDriverGetVersion", l.raw(l.driverGetVersion, uintptr(unsafe.Pointer(&l.version)))); err != nil {
		return nil, err
	}
	if l.version < minDriver {
		return nil, fmt.Errorf("the driver supports CUDA %s, LaneFS's kernels need 11.0: update the driver, or use --gpu host", l.versionString())
	}
	if err := lib.Bind("CUDA "+l.versionString(), l.symbols()); err != nil {
		return nil, err
	}
	if code := l.raw(l.init, 0); code != success {
		return nil, fmt.Errorf("the driver is there, but no GPU can be used: %w", l.check("cuInit", code))
	}
	return l, nil
})

// setenv sets a variable for libcuda, unless the user has.
func setenv(name, value string) {
	if os.Getenv(name) != "" {
		return
	}
	os.Setenv(name, value)
	// Go's environment is a copy; the library reads C's.
	if fn, err := purego.Dlsym(purego.RTLD_DEFAULT, "setenv"); err == nil && fn != 0 {
		n, v := append([]byte(name), 0), append([]byte(value), 0)
		purego.SyscallN(fn, uintptr(unsafe.Pointer(&n[0])), uintptr(unsafe.Pointer(&v[0])), 1)
	}
}

func (l *library) versionString() string {
	return fmt.Sprintf("%d.%d", l.version/1000, l.version%1000/10)
}

// raw calls a function that needs no context.
//
//go:uintptrescapes
func (l *library) raw(fn uintptr, args ...uintptr) result {
	code, _, _ := purego.SyscallN(fn, args...)
	return result(code)
}

// Error is a failed call of the driver.
type Error struct {
	Call string // "cuMemCreate"
	Code int    // CUresult
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // the driver's words
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%s, %d)", e.Call, e.Text, e.Name, e.Code) }

func (l *library) check(call string, code result) error {
	if code == success {
		return nil
	}
	var name, text uintptr
	l.raw(l.getErrorName, uintptr(code), uintptr(unsafe.Pointer(&name)))
	l.raw(l.getErrorString, uintptr(code), uintptr(unsafe.Pointer(&text)))
	return &Error{Call: call, Code: int(code), Name: dynlib.String(name), Text: dynlib.String(text)}
}

func goString(b []byte) string {
	n := bytes.IndexByte(b, 0)
	return string(b[:max(n, 0)])
}

// pciAddress turns NVIDIA's "00000000:C1:00.0" into the kernel's "0000:c1:00.0".
func pciAddress(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return s
}
