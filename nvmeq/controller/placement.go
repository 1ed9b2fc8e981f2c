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

// Placement is the kind of memory that each thing is put in. Its zero value is pinned host memory for all but Lane, which is
// in the memory of whoever runs the lanes.
type Placement struct {
	SQ       gpu.MemKind
	CQ       gpu.MemKind
	Data     gpu.MemKind
	List     gpu.MemKind // PRP lists: the lane writes, the controller reads
	Host     gpu.MemKind // what else the controller reaches and the CPU writes: the admin queue, range lists
	Lane     gpu.MemKind // what only the lane touches: its state, command identifiers
	Ring     gpu.MemKind // work, results, counters: CPU and lane poll them
	Doorbell gpu.MemKind // the bridge's words: the lane stores, the CPU polls. In device memory they ask for the bridge
}

// Placement of a memory mode. The completion queue is uncached: a device cache need not see what the controller writes
// past it; likewise the bridge's words, which the CPU reads past it.
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
// Every step goes there, nobody but the lane does, and every device has that kind.
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

// usePages has a drive reach ordinary pages only. Host memory that a GPU's driver allocates may be a mapping of the driver's
// own (VM_PFNMAP), which IOMMUFD cannot pin; pages that were registered with the device serve both. What the CPU and the
// device have between them stays.
func (p *Placement) usePages() {
	for _, k := range []*gpu.MemKind{&p.SQ, &p.CQ, &p.Data, &p.List, &p.Host} {
		if *k == gpu.HostMapped {
			*k = gpu.HostPinned
		}
	}
}
