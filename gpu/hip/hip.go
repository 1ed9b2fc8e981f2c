// Package hip is the gpu.Runtime of AMD GPUs, over HIP (libamdhip64) and the HSA runtime (libhsa-runtime64), both bound at
// run time. What HIP has in common with CUDA is gpu/internal/driver's; here is what only AMD has.
//
// Memory. Each kind is the call that ROCm XIO's memory model names for it [XIO]:
//
//	host-mapped     hipHostMalloc(Mapped); uncached on MI300, where the library can
//	host-coherent   hipHostMalloc(Mapped | Coherent)
//	host-pinned     ordinary pages and hipHostRegister
//	host-plain      ordinary pages
//	host-default    hipHostMalloc(Default)
//	device-fine     hipExtMallocWithFlags(Finegrained): Radeons need HSA_FORCE_FINE_GRAIN_PCIE=1 for it
//	device-coarse   hipExtMallocWithFlags(Default)
//	device-uncached hipExtMallocWithFlags(Uncached): what a completion queue in VRAM needs, since L2 does not snoop PCIe
//	device-vmm      hipMemCreate, hipMemMap: grows in place, and its free does not wait for running kernels
//	device-plain    hipMalloc
//
// The CPU's view of device memory is what hsa_amd_pointer_info says it is: with a large BAR the same address, else none.
//
// Sharing. VMM memory leaves as a POSIX handle, which with AMD is a DMA-BUF; other device memory as a DMA-BUF of
// hsa_amd_portable_export_dmabuf (v2 with a PCIe mapping where there is one), and as an HSA IPC handle. DMA-BUFs of other
// devices, an NVMe controller's BAR for one, come in through hsa_amd_interop_map_buffer. HIP knows nothing of memory that
// came in through HSA: kernels reach it, Stream.Copy does not.
//
// Contexts and threads. HIP keeps one context per device; which device is meant belongs to the thread. See
// gpu/internal/driver.
//
// None of this has run on an AMD GPU yet. The shim (lab/rocm) has HIP's calls over CUDA and over plain memory, and the
// whole package runs on it; the layouts and symbols are checked against AMD's own headers and libraries.
//
// Specifications: HIP Runtime API 6.4 [HIP]; HSA Runtime Programmer's Reference 1.2 and hsa_ext_amd.h 1.15 [HSA]; "Memory
// modes, allocation, and coherence in ROCm XIO", 2026-04 [XIO].
package hip

import (
	"fmt"
	"strings"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/internal/driver"
)

// Options are what can be chosen of the device; the zero value is good.
type Options struct {
	Device string // an ordinal, as HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES leave them, a UUID or the beginning of one, or a PCI address; empty: the first
}

// Runtime implements gpu.Runtime.
type Runtime struct {
	*driver.Device
	lib   *library
	agent agent // the device, as HSA knows it
	notes []string
}

// Open opens a device. The error says in one line what is missing: the runtime, a new enough one, a device.
func Open(o Options) (*Runtime, error) {
	lib, err := open()
	if err != nil {
		return nil, fmt.Errorf("hip runtime: %w", err)
	}
	ordinal, err := lib.find(o.Device)
	if err != nil {
		return nil, fmt.Errorf("hip runtime: %w", err)
	}
	c, err := lib.openDevice(ordinal)
	if err != nil {
		return nil, fmt.Errorf("hip runtime: %w", err)
	}
	r := &Runtime{lib: lib, notes: lib.missing()}
	if r.agent, c.Facts.Arch, err = lib.findAgent(ordinal); err != nil {
		return nil, fmt.Errorf("hip runtime: %w", err)
	}
	c.HostFlags = func(kind gpu.MemKind) uintptr { return hostFlags(kind, c.Facts.Arch, lib.version) }
	c.Arrived, c.Direct = lib.arrived(r.agent), true
	r.Device = driver.New(c)
	for _, why := range []string{needsForce(c.Facts.Arch), c.NoVMM} {
		if why != "" {
			r.notes = append(r.notes, why)
		}
	}
	return r, nil
}

// Missing says what this machine lacks that LaneFS would use, a sentence each.
func (r *Runtime) Missing() []string { return r.notes }

// isRadeon says whether the architecture is one of AMD's consumer GPUs: gfx10, gfx11 and gfx12.
func isRadeon(arch string) bool {
	for _, prefix := range []string{"gfx10", "gfx11", "gfx12"} {
		if strings.HasPrefix(arch, prefix) && len(arch) == len(prefix)+2 {
			return true
		}
	}
	return false
}
