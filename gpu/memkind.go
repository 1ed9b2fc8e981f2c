package gpu

// MemKind says where memory lives, and when stores of the CPU, of kernels and of other devices are visible to one another. The kinds are those of ROCm XIO's memory model
// ("Memory modes, allocation, and coherence in ROCm XIO", 2026-04).
type MemKind uint8

const (
	HostMapped     MemKind = iota + 1 // pinned, reachable by kernels: queues, rings, data
	HostCoherent                      // HostMapped, and coherent across devices
	HostPinned                        // ordinary pages registered with the device: what RDMA and type1 want
	HostPlain                         // ordinary pages, CPU only
	HostDefault                       // pinned for copies, not mapped for kernels
	DeviceFine                        // device memory, stores visible system-wide at once
	DeviceCoarse                      // device memory, stores visible when the kernel ends
	DeviceUncached                    // device memory that bypasses the device's caches: completion queues
	DeviceVMM                         // device memory under an address range that can grow
	DevicePlain                       // device memory, the allocator's default
)

var memKindNames = [...]string{"", "host-mapped", "host-coherent", "host-pinned", "host-plain", "host-default",
	"device-fine", "device-coarse", "device-uncached", "device-vmm", "device-plain"}

func (k MemKind) String() string {
	if int(k) < len(memKindNames) && k > 0 {
		return memKindNames[k]
	}
	return "invalid"
}

// Device says whether the memory belongs to the device rather than to the host.
func (k MemKind) Device() bool { return k >= DeviceFine && k <= DevicePlain }
