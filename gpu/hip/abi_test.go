package hip

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
	"github.com/lanefs/lanefs/lab/rocm"
)

// functions are the names that the libraries of a release export.
func functions(t *testing.T, r rocm.Release, libs ...string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, lib := range libs {
		f, err := elf.Open(r.Lib(lib))
		require.NoError(t, err)
		defer f.Close()
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
				all[s.Name] = true
			}
		}
	}
	return all
}

// AMD's libraries have every function that we require, and lack exactly those optional ones that we say came later.
func TestROCmSymbols(t *testing.T) {
	for version, libs := range map[string][]string{
		"5.2.3": {"libamdhip64.so.5", "libhsa-runtime64.so.1"}, "6.4.3": {"libamdhip64.so.6", "libhsa-runtime64.so.1"},
	} {
		t.Run(version, func(t *testing.T) {
			has := functions(t, rocm.Debian(t, version), libs...)
			l := &library{}
			early := []dynlib.Symbol{l.init.Required("hipInit"), l.runtimeGetVersion.Required("hipRuntimeGetVersion"),
				l.getErrorName.Required("hipGetErrorName"), l.getErrorString.Required("hipGetErrorString")}
			for _, s := range slices.Concat(early, l.hipSymbols(), l.hsaSymbols()) {
				since, later := strings.CutPrefix(s.Since, "ROCm ")
				// VMM's functions are in 5.2, where they do nothing on Linux, and legacy IPC.
				present := !later || since <= version[:3] || strings.HasPrefix(s.Name, "hipMem") || strings.HasPrefix(s.Name, "hipIpc")
				require.Equal(t, present, has[s.Name], "%s, since %q", s.Name, s.Since)
			}
		})
	}
}

// Our layouts and numbers are those of AMD's headers, as a C compiler sees them.
func TestROCmHeaders(t *testing.T) {
	r := rocm.Debian(t, "6.4.3")
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("this test needs gcc: apt-get install gcc libc6-dev")
	}
	var prop driver.AllocationProp
	var access driver.AccessDesc
	var info pointerInfo
	ours := []struct {
		c     string
		value uint64
	}{
		{"sizeof(hipMemAllocationProp)", uint64(unsafe.Sizeof(prop))},
		{"offsetof(hipMemAllocationProp, requestedHandleType)", uint64(unsafe.Offsetof(prop.HandleTypes))},
		{"offsetof(hipMemAllocationProp, location)", uint64(unsafe.Offsetof(prop.Location))},
		{"offsetof(hipMemAllocationProp, location.id)", uint64(unsafe.Offsetof(prop.Location) + unsafe.Offsetof(prop.Location.ID))},
		{"offsetof(hipMemAllocationProp, win32HandleMetaData)", uint64(unsafe.Offsetof(prop.Win32))},
		{"offsetof(hipMemAllocationProp, allocFlags.gpuDirectRDMACapable)", uint64(unsafe.Offsetof(prop.RDMACapable))},
		{"offsetof(hipMemAllocationProp, allocFlags.usage)", uint64(unsafe.Offsetof(prop.Usage))},
		{"sizeof(hipMemAccessDesc)", uint64(unsafe.Sizeof(access))},
		{"offsetof(hipMemAccessDesc, flags)", uint64(unsafe.Offsetof(access.Flags))},
		{"sizeof(hipMemGenericAllocationHandle_t)", 8},
		{"hipMemAllocationTypePinned", driver.AllocationPinned}, {"hipMemLocationTypeDevice", driver.LocationDevice},
		{"hipMemHandleTypePosixFileDescriptor", driver.HandlePosixFD}, {"hipMemAccessFlagsProtReadWrite", 3},
		{"hipMemAllocationGranularityMinimum", 0}, {"hipStreamNonBlocking", 1}, {"hipMemcpyDefault", memcpyDefault},
		{"hipDeviceAttributeMultiprocessorCount", attrUnits}, {"hipDeviceAttributeWarpSize", attrWarpSize},
		{"hipDeviceAttributeVirtualMemoryManagementSupported", attrVMM}, {"hipDeviceAttributeIsLargeBar", attrLargeBAR},
		{"hipDeviceAttributeWallClockRate", attrWallClockRate},
		{"hipHostMallocPortable", driver.HostPortable}, {"hipHostMallocMapped", driver.HostMapped}, {"hipHostMallocCoherent", hostCoherent},
		{"hipHostRegisterPortable", driver.HostPortable}, {"hipHostRegisterMapped", driver.HostMapped}, {"hipHostRegisterIoMemory", 4},
		{"hipHostRegisterReadOnly", driver.HostReadOnly},
		{"hipDeviceMallocDefault", deviceDefault}, {"hipDeviceMallocFinegrained", deviceFine}, {"hipDeviceMallocUncached", deviceUncached},
		{"hipSuccess", driver.Success}, {"hipErrorOutOfMemory", hipErrorOutOfMemory}, {"hipErrorNotReady", 600}, {"hipErrorLaunchFailure", 719},
		{"sizeof(hsa_amd_pointer_info_t)", uint64(unsafe.Sizeof(info))},
		{"offsetof(hsa_amd_pointer_info_t, type)", uint64(unsafe.Offsetof(info.Type))},
		{"offsetof(hsa_amd_pointer_info_t, agentBaseAddress)", uint64(unsafe.Offsetof(info.AgentBase))},
		{"offsetof(hsa_amd_pointer_info_t, hostBaseAddress)", uint64(unsafe.Offsetof(info.HostBase))},
		{"offsetof(hsa_amd_pointer_info_t, sizeInBytes)", uint64(unsafe.Offsetof(info.Bytes))},
		{"offsetof(hsa_amd_pointer_info_t, agentOwner)", uint64(unsafe.Offsetof(info.Owner))},
		{"offsetof(hsa_amd_pointer_info_t, global_flags)", uint64(unsafe.Offsetof(info.Flags))},
		{"sizeof(hsa_agent_t)", uint64(unsafe.Sizeof(agent{}))}, {"sizeof(hsa_amd_ipc_memory_t)", uint64(unsafe.Sizeof(ipcHandle{}))},
		{"HSA_AMD_AGENT_INFO_HDP_FLUSH", hsaAgentInfoHDP}, {"sizeof(hsa_amd_hdp_flush_t)", uint64(unsafe.Sizeof(hdpFlush{}))},
		{"offsetof(hsa_amd_hdp_flush_t, HDP_MEM_FLUSH_CNTL)", uint64(unsafe.Offsetof(hdpFlush{}.Mem))},
		{"HSA_AGENT_INFO_NAME", hsaAgentInfoName}, {"HSA_EXT_POINTER_TYPE_UNKNOWN", pointerTypeUnknown},
	}
	dir := t.TempDir()
	src := "#define __HIP_PLATFORM_AMD__ 1\n#include <stddef.h>\n#include <stdio.h>\n#include <hip/hip_runtime_api.h>\n#include <hsa/hsa.h>\n#include <hsa/hsa_ext_amd.h>\nint main(void) {\n"
	var want strings.Builder
	for _, o := range ours {
		src += fmt.Sprintf("\tprintf(\"%%s = %%llu\\n\", %q, (unsigned long long)(%s));\n", o.c, o.c)
		fmt.Fprintf(&want, "%s = %d\n", o.c, o.value)
	}
	// The arguments, too: a pointer to each function of the type that we call it by.
	for _, f := range []string{
		"hipError_t (*a)(void **, size_t, unsigned) = hipExtMallocWithFlags", "hipError_t (*b)(void **, size_t, unsigned) = hipHostMalloc",
		"hipError_t (*c)(void **, size_t, size_t, void *, unsigned long long) = hipMemAddressReserve",
		"hipError_t (*d)(hipMemGenericAllocationHandle_t *, size_t, const hipMemAllocationProp *, unsigned long long) = hipMemCreate",
		"hipError_t (*e)(void *, size_t, size_t, hipMemGenericAllocationHandle_t, unsigned long long) = hipMemMap",
		"hipError_t (*f)(void *, size_t, const hipMemAccessDesc *, size_t) = hipMemSetAccess",
		"hipError_t (*g)(void *, hipMemGenericAllocationHandle_t, hipMemAllocationHandleType, unsigned long long) = hipMemExportToShareableHandle",
		"hipError_t (*h)(void *, const void *, size_t, hipMemcpyKind, hipStream_t) = hipMemcpyAsync",
		"hipError_t (*i)(hipDeviceptr_t, unsigned char, size_t, hipStream_t) = hipMemsetD8Async",
		"hipError_t (*j)(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, hipStream_t, void **, void **) = hipModuleLaunchKernel",
		"hsa_status_t (*k)(const void *, hsa_amd_pointer_info_t *, void *(*)(size_t), uint32_t *, hsa_agent_t **) = hsa_amd_pointer_info",
		"hsa_status_t (*l)(uint32_t, hsa_agent_t *, int, uint32_t, size_t *, void **, size_t *, const void **) = hsa_amd_interop_map_buffer",
		"hsa_status_t (*m)(const void *, size_t, int *, uint64_t *) = hsa_amd_portable_export_dmabuf",
		"hsa_status_t (*n)(int) = hsa_amd_portable_close_dmabuf",
		"hsa_status_t (*o)(void *, size_t, hsa_amd_ipc_memory_t *) = hsa_amd_ipc_memory_create",
		"hsa_status_t (*p)(const hsa_amd_ipc_memory_t *, size_t, uint32_t, const hsa_agent_t *, void **) = hsa_amd_ipc_memory_attach",
		"hipError_t (*q)(void *, size_t, unsigned) = hipHostRegister", "hipError_t (*r)(void **, void *, unsigned) = hipHostGetDevicePointer",
	} {
		src += "\t{ " + f + "; (void)" + strings.TrimPrefix(f[strings.Index(f, "(*"):strings.Index(f, ")")], "(*") + "; }\n"
	}
	src += "\treturn 0;\n}\n"
	file := filepath.Join(dir, "layout.c")
	require.NoError(t, os.WriteFile(file, []byte(src), 0o600))
	// Nothing is linked: the addresses stay unresolved in an object that is never run with them.
	run := exec.Command(cc, "-O1", "-Werror=incompatible-pointer-types", "-I"+filepath.Join(r.Dir, "usr/include"), "-o", filepath.Join(dir, "layout"), file)
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(filepath.Join(dir, "layout")).Output()
	require.NoError(t, err)
	require.Equal(t, want.String(), string(out))
}
