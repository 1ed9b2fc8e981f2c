package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu"
)

// MemoryMode says what is in device memory, in the bits of ROCm XIO's --memory-mode. Clear bits mean pinned host memory.
type MemoryMode uint8

const (
	ModeSQ       MemoryMode = 1 << 0
	ModeCQ       MemoryMode = 1 << 1
	ModeDoorbell MemoryMode = 1 << 2 // reserved there; here the words of the doorbell bridge
	ModeData     MemoryMode = 1 << 3
)

// Ordered says that completions and data are in the same memory. A controller writes a command's data before its completion, and PCI
// Express keeps the order of posted writes of one requester on their way to one completer (PCI Express Base 6.0 §2.4.1,
// entry A2a). Nothing orders those that part ways: a completion in the GPU's memory may be there before the data is in the host's, unless Controller.Land follows.
func (m MemoryMode) Ordered() bool { return m&ModeCQ != 0 == (m&ModeData != 0) }

// Placement is the kind of memory of everything that lanes or the controller access. Zero is pinned host memory, but for Lane the
// memory of the device that runs the lanes.
type Placement struct {
	SQ       gpu.MemKind
	CQ       gpu.MemKind
	Data     gpu.MemKind
	List     gpu.MemKind // PRP lists: the lane writes, the controller reads
	Host     gpu.MemKind // the admin queue and range lists: the CPU writes, the controller reads and writes
	Lane     gpu.MemKind // what only the lane accesses: its state, command identifiers
	Ring     gpu.MemKind // work, results, counters: CPU and lane poll them
	Doorbell gpu.MemKind // the bridge's words: the lane stores, the CPU polls. In device memory they ask for the bridge
}

// Placement of a memory mode. The completion queue is uncached: the controller writes it past the device's cache. So are the
// bridge's words, which the CPU reads past the cache.
func (m MemoryMode) Placement() (Placement, error) {
	if m > 15 {
		return Placement{}, fmt.Errorf("memory mode %d: want 0 to 15", m)
	}
	var p Placement
	if m&ModeSQ != 0 {
		p.SQ = gpu.DeviceFine
	}
	if m&ModeCQ != 0 {
		p.CQ = gpu.DeviceUncached
	}
	if m&ModeDoorbell != 0 {
		p.Doorbell = gpu.DeviceUncached
	}
	if m&ModeData != 0 {
		p.Data = gpu.DeviceFine
	}
	return p, nil
}

// fill replaces what is not set: by pinned host memory, and Lane by the device's plain memory where the lanes run on a device.
// Every step of a lane accesses that memory and nothing else does, and every device has plain memory.
func (p *Placement) fill(rt gpu.Runtime) {
	if p.Lane == 0 && !rt.Facts().CallerDriven {
		p.Lane = gpu.DevicePlain
	}
	for _, k := range []*gpu.MemKind{&p.SQ, &p.CQ, &p.Data, &p.List, &p.Host, &p.Lane, &p.Ring, &p.Doorbell} {
		if *k == 0 {
			*k = gpu.HostMapped
		}
	}
}

// usePages allocates what an NVMe drive accesses as ordinary pages. Host memory that a GPU's driver allocates may be a mapping
// of the driver (VM_PFNMAP), which IOMMUFD cannot pin; pages that are registered with the device serve both. What only the
// CPU and the device access is not changed.
func (p *Placement) usePages() {
	for _, k := range []*gpu.MemKind{&p.SQ, &p.CQ, &p.Data, &p.List, &p.Host} {
		if *k == gpu.HostMapped {
			*k = gpu.HostPinned
		}
	}
}
