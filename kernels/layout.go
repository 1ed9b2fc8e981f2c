// Package kernels holds the HIP sources of the lanes, the images built from them, and the layout of the memory that
// CPU and lanes share.
//
// A lane is a wave of threads, or one thread, that owns one NVMe I/O queue pair and one work ring. The CPU writes Work items into
// the ring; the lane posts them, rings the doorbells, polls the completions and answers each item with exactly one Result. The unit
// is the step, which never waits; a resident kernel loops over steps. A team is the threads of a lane (team.h).
//
// layout.h defines the layout and explains it. nvme_qp.h is the queue pair alone, for other people's kernels too. The images are
// made by build.sh and committed. The package knows nothing of gpu.Runtime, of namespaces, or of what a command means.
package kernels

import "structs"

// This file mirrors layout.h, which is the definition and explains every field. TestLayout compares the two.

// Magic and Version are what a Lane begins with; the kernels refuse one that differs.
const (
	Magic   = 0x656e614c
	Version = 5
)

// Sizes in bytes.
const (
	WorkSize     = 64
	ResultSize   = 32
	CIDSize      = 32
	TraceSize    = 64
	ControlSize  = 64
	StatusSize   = 64
	CountersSize = 128
	LaneSize     = 384
)

// Command is what the CPU asks of a lane: the lowest byte of Control.Command.
type Command = uint32

const (
	CommandRun  Command = iota // take work, post, reap
	CommandPark                // a resident kernel leaves, with all its lanes, and keeps what is in flight
	CommandFail                // the queue pair is gone: answer everything with EngineQueueDead
)

// Of Control.Command the lowest byte is a Command; the rest counts holds. While that is odd the lane is the CPU's: a resident kernel
// stores the number in Status.Held, and does nothing with the lane until it is even again.
const (
	CommandMask = 0xff
	HoldShift   = 8
	HoldBit     = 1 << HoldShift
)

// State is what a lane is doing (Status.State).
type State = uint32

const (
	StateNew     State = iota // ResetKernel has not run, or refused the lane
	StateReady                // StepKernel and BatchKernel run it
	StateRunning              // a resident kernel runs it
	StateParking              // a resident kernel polls for work once more before it leaves or dozes
	StateParked               // a resident kernel has left, or has given the lane to the CPU, which holds it
	StateDozing               // a resident kernel has it and looks for work now and then
)

// Engine is the engine's own outcome of a work item (Result.Engine).
type Engine = uint8

const (
	EngineOK        Engine = iota // the controller completed the command; its status is in Result.Status
	EngineTimeout                 // no completion by the deadline; the command may still run
	EngineBadCQE                  // a completion named a command that is not in flight
	EngineQueueDead               // CommandFail, or every CID timed out, or the lane was reset
	EngineBadWork                 // not posted: data not dword-aligned, or too long for the PRP lists
	EngineBadLane                 // magic, version or sizes differ from the kernel's
)

// Work is one command: struct lanefs_work. A ring has it as a WorkSlot.
type Work struct {
	_       structs.HostLayout
	Seq     uint32
	Opcode  uint8
	Flags   uint8
	Tag     uint16
	Nsid    uint32
	Len     uint32 // bytes
	Iova    uint64
	Mptr    uint64
	Cdw10   uint32
	Cdw11   uint32
	Cdw12   uint32
	Cdw13   uint32
	Cdw14   uint32
	Cdw15   uint32
	Timeout uint64 // ticks
}

// Result is one answer: struct lanefs_result. A ring has it as a ResultSlot.
type Result struct {
	_        structs.HostLayout
	Seq      uint32
	Tag      uint16
	Status   uint16 // CQE DW3 31:17, without the phase bit
	Dw0      uint32
	Dw1      uint32
	Latency  uint64 // ticks
	Cid      uint16
	Sqhd     uint16
	Engine   Engine
	Reserved [3]uint8
}

// CID is a lane's private record of a command identifier: struct lanefs_cid.
type CID struct {
	_        structs.HostLayout
	Posted   uint64
	Len      uint32
	Tag      uint16
	State    uint8
	Opcode   uint8
	Deadline uint64
	Free     uint16
	Reserved [6]uint8
}

// Trace is when the steps of a command happened, in ticks of the lane's own clock: struct lanefs_trace. Only the kernels of package traced
// write it.
type Trace struct {
	_         structs.HostLayout
	Seen      uint64
	Built     uint64
	Released  uint64
	Rung      uint64
	Found     uint64
	Answered  uint64
	Seq       uint32 // that of the result
	Reserved0 uint32
	Reserved  uint64
}

// Control is written by the CPU and read by the lane: struct lanefs_control.
type Control struct {
	_        structs.HostLayout
	Command  uint32 // a Command, and the number of the hold
	Reserved [15]uint32
}

// Status is written by the lane at the end of a step: struct lanefs_status.
type Status struct {
	_          structs.HostLayout
	State      State
	Progress   uint32
	InFlight   uint32
	DeadCids   uint32
	Failed     uint32 // an Engine
	WorkNext   uint32
	ResultNext uint32
	BadCid     uint32 // CID, and SQID in the high half
	Time       uint64
	Held       uint32 // the last hold that a resident kernel has answered
	Reserved0  uint32
	Reserved   [2]uint64
}

// Counters only grow: struct lanefs_counters.
type Counters struct {
	_            structs.HostLayout
	Commands     uint64
	Completions  uint64
	BytesRead    uint64
	BytesWritten uint64
	SqDoorbells  uint64
	CqDoorbells  uint64
	Errors       uint64
	Timeouts     uint64
	Late         uint64
	Spurious     uint64
	Rejected     uint64
	Reserved     [5]uint64
}

// Lane is one queue pair with its work ring: struct lanefs_lane. Addresses are the device's.
type Lane struct {
	_          structs.HostLayout
	Magic      uint32
	Version    uint32
	Size       uint32
	Sqid       uint16
	Reserved0  uint16
	Sq         uint64
	Cq         uint64
	SqDoorbell uint64
	CqDoorbell uint64
	Work       uint64
	Results    uint64
	Cids       uint64
	Prp        uint64
	PrpIova    uint64
	Control    uint64
	Status     uint64
	Counters   uint64
	SqSize     uint32
	CqSize     uint32
	RingSize   uint32
	CidCount   uint32
	PrpStride  uint32
	PageSize   uint32
	Silent     uint64
	Reserved1  [5]uint64
	Trace      uint64 // ring_size Trace, for the CPU; 0: none

	SqTail       uint32
	CqHead       uint32
	CqPhase      uint32
	WorkNext     uint32
	ResultNext   uint32
	InFlight     uint32
	CidHead      uint32
	DeadCids     uint32
	NextDeadline uint64
	Failed       uint32
	BadCid       uint32
	CidTail      uint32
	Ready        uint32
	Stamps       uint64 // as many Trace as there are CIDs, for the lane
	Totals       Counters
}

// PRPStride is how many bytes of PRP list a CID needs for transfers of up to n bytes, with pages of page bytes as
// CC.MPS counts them. Lists up to a page are a power of two, so none crosses a page boundary; longer ones are whole
// pages, each but the last giving its last entry to the address of the next. Lane.Prp and Lane.PrpIova are page-aligned.
func PRPStride(n, page int64) uint32 {
	entries := max((n+page-1)/page, 1) // a transfer that starts inside a page touches one more; PRP1 takes one
	perPage := page / 8
	if entries > perPage {
		return uint32((entries - 2 + perPage - 1) / (perPage - 1) * page)
	}
	stride := uint32(64)
	for int64(stride) < entries*8 {
		stride *= 2
	}
	return stride
}
