package controller

import (
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Transport is how the host reaches one controller: its BAR 0, its DMA, its reset. nvmeq/softctl implements it in
// software, nvmeq/pcie over a PCI function.
type Transport interface {
	// Registers of BAR 0. Offsets are bytes; Read64 and Write64 may be two 32-bit accesses, low word first.
	Read32(off int64) uint32
	Read64(off int64) uint64
	Write32(off int64, v uint32)
	Write64(off int64, v uint64)
	// BAR is BAR 0 as memory, page-aligned, valid until Close: the doorbells that lanes store to are in it. The last page is whole: as far as the capacity, where
	// the BAR is smaller than a page.
	BAR() []byte
	// Map maps n bytes of m from off for DMA of the controller. off and n are multiples of 4096.
	Map(m gpu.Memory, off, n int64) (nvme.IOVA, error)
	Unmap(a nvme.IOVA) error
	// Reset is a function-level reset: after it the controller is disabled and has no queues. Mappings stay.
	Reset() error
	// Name is what a user calls the device: a path or a PCI address.
	Name() string
	Close() error
}

// Borrower is a Transport to which it makes a difference whose memory is: what a caller has lent may be cut up by the caller while it is mapped.
type Borrower interface {
	// Borrowed says that what is mapped at an address is such memory. It follows Map, and comes before any use.
	Borrowed(at nvme.IOVA)
}

// Leaver is a Transport to a device that may be taken away while it is in use.
type Leaver interface {
	// OnLeave has f called before the device is given back, nil for nothing: what kernels have of its BAR is taken back first. An error
	// of f keeps the device until Close. f is called once, by any goroutine, also from within Reset.
	OnLeave(f func() error)
}

// Stepper is a Transport to a controller in software that can work on the caller's thread.
type Stepper interface {
	// Step has the controller work on submission queue sqid (0 is the admin queue) and its completion queue. It
	// never blocks longer than the I/O it performs and reports whether it did anything.
	Step(sqid uint16) bool
}

// HereStepper is a Stepper that has threads of its own, but leaves a queue to callers of StepHere from the first such call on: it works on it
// on their threads, as Step does without threads.
type HereStepper interface {
	Stepper
	StepHere(sqid uint16) bool
}

// LoneCommand is a command that goes without the rings of a queue pair.
type LoneCommand struct {
	Op     nvme.Opcode // Read, Write or Flush
	FUA    bool        // of a Write: Force Unit Access
	NSID   uint32
	SLBA   uint64
	Blocks uint32
	Bytes  uint32    // in the blocks; 0 of a Flush
	Data   nvme.IOVA // where all of them are
}

// LoneStepper is a Stepper that can carry out a lone read or write without the rings of a queue pair.
type LoneStepper interface {
	Stepper
	// LoneMost is how many bytes such a command has at most; 0: there is none. It does not change.
	LoneMost() int64
	// LonesWait says whether the caller's thread waits for a device in a system call meanwhile, as a rule. It does not change.
	LonesWait() bool
	// Lone carries out a Read, a Write or a Flush on the caller's thread, and says whether it has: then the command has succeeded. Else it is to be sent by the queue.
	Lone(sqid uint16, cmd LoneCommand) bool
}
