// Package gpu is runtimes and what they give: a Runtime runs kernels, on an AMD GPU (HIP), an NVIDIA GPU (CUDA) or CPU threads (host).
// A Memory is a block of bytes that kernels reach at Addr and, when the kind allows it, the CPU reaches through Host. A Module is a loaded
// kernel image, a Function one of its entry points, a Stream an ordered queue of launches and copies. It knows nothing of NVMe.
//
// Sizes are bytes. The caller of a function that creates something closes it; a Runtime is closed last.
//
// The flow of a launch:
//
//  1. Open of gpu/hip, gpu/cuda or gpu/host: a Runtime
//  2. Runtime.Load, Module.Function: the kernel
//  3. Runtime.Alloc: memory for its arguments, of the kind that the CPU, the GPU and other devices need
//  4. Runtime.NewStream, Stream.Launch: the kernel begins
//  5. Stream.Done or Stream.Wait: it has ended, or with what error
package gpu

import (
	"errors"
	"fmt"
	"time"
)

// Addr is an address as kernels see it. It is never a CPU pointer and never an IOVA, though on some devices the three
// have the same value.
type Addr uint64

// Export is a handle by which another process, driver or runtime reaches a Memory.
type Export struct {
	FD     int   // the receiver of the Export closes it
	Offset int64 // bytes into the object behind FD
	Size   int64 // bytes
	Kind   ExportKind
}

// ExportKind says what FD is.
type ExportKind uint8

const (
	ExportMemFD  ExportKind = iota + 1 // a memfd: host memory
	ExportDMABUF                       // a DMA-BUF: another driver can map it for its device
	ExportPOSIX                        // a VMM shareable handle: the same vendor's runtime imports it
	ExportIPC                          // a memfd with an HSA IPC handle in it: HIP imports it, where it has no VMM
	ExportLegacy                       // a memfd with a handle of cuIpcGetMemHandle or hipIpcGetMemHandle in it: what cudaMalloc gave
)

var exportNames = [...]string{"", "memfd", "DMA-BUF", "POSIX handle", "IPC handle", "legacy IPC handle"}

func (k ExportKind) String() string {
	if int(k) < len(exportNames) && k > 0 {
		return exportNames[k]
	}
	return fmt.Sprintf("export of kind %d", uint8(k))
}

// Memory is one allocation.
type Memory interface {
	Kind() MemKind
	Size() int64
	Addr() Addr
	// Host is the CPU's view, nil where the kind has none.
	Host() []byte
	// Reach is on what terms others get at the bytes.
	Reach() Reach
	// Export hands out a new descriptor for the memory. Kinds that cannot be exported return an error that says so.
	Export(want ExportKind) (Export, error)
	Close() error
}

// Range is a VMM reservation: its address never changes while it grows.
type Range interface {
	Memory
	// Reserved is the size of the address range; Size is how much of it is backed now.
	Reserved() int64
	// Grow backs the range up to size bytes (rounded up to Facts.Granularity) without moving or copying what is there.
	Grow(size int64) error
}

// Dim3 is the shape of a launch.
type Dim3 struct{ X, Y, Z uint32 }

// Module is a loaded kernel image.
type Module interface {
	Function(name string) (Function, error)
	Close() error
}

// Function is an entry point of a Module. It belongs to the Runtime that loaded it.
type Function interface{ Name() string }

// Limited is a Function of a device that holds only so many blocks at once.
type Limited interface {
	// Fits is how many blocks of that shape can be resident together, on a device that runs nothing else.
	Fits(block Dim3) (int64, error)
}

// Fits is f's, and more than anybody asks for where there is no limit.
func Fits(f Function, block Dim3) (int64, error) {
	if l, ok := f.(Limited); ok {
		return l.Fits(block)
	}
	return 1 << 30, nil
}

// Urgent is a Runtime whose streams can be of two kinds. Streams share queues of the device, in which a kernel waits for the end of all
// that came before it: a kernel that does not end soon needs a queue in which nobody else's wait.
type Urgent interface {
	// NewUrgentStream is a stream with a queue that it shares with urgent ones only.
	NewUrgentStream() (Stream, error)
}

// NewUrgentStream is rt's, or a stream like any other where all are alike.
func NewUrgentStream(rt Runtime) (Stream, error) {
	if u, ok := rt.(Urgent); ok {
		return u.NewUrgentStream()
	}
	return rt.NewStream()
}

// Stream is an ordered queue of work on the device.
type Stream interface {
	// Launch runs f over grid × block threads. Every argument is one 64-bit word (an Addr or an integer): kernels of
	// this project take no other kind. On a caller-driven runtime (Facts.CallerDriven) it returns when f has finished.
	Launch(f Function, grid, block Dim3, args ...uint64) error
	// Copy moves n bytes from src to dst, both as kernels see them, in stream order.
	Copy(dst, src Addr, n int64) error
	// Fill sets n bytes at dst to v, in stream order.
	Fill(dst Addr, v byte, n int64) error
	// Done says without blocking whether everything queued so far has finished, and the first error if any.
	Done() (bool, error)
	// Wait blocks until everything queued so far has finished. It reports os.ErrDeadlineExceeded after timeout.
	Wait(timeout time.Duration) error
	Close() error
}

// ErrNotBegun is in the error of a copy that the device was not given: it uses no memory.
var ErrNotBegun = errors.New("it was not begun")

// Marker is a Stream that stores a word when everything queued before has ended and its effects can be seen. Whoever waits looks at the word,
// and calls no driver, whose calls wait for one another.
type Marker interface {
	// Mark stores v at dst, host memory that kernels reach, in stream order. Where the driver has no such call the error is
	// errors.ErrUnsupported.
	Mark(dst Addr, v uint32) error
}

// Facts is what a runtime knows of its device.
type Facts struct {
	Name         string // "host CPU", "AMD Instinct MI300X", "NVIDIA H100 80GB HBM3"
	Arch         string // "x86_64", "gfx942", "sm_90"
	Runtime      string // the library and its version
	PCI          string // 0000:c1:00.0; of one of several host runtimes host:1, else empty
	UUID         string // GPU-…, MIG-…; empty: not known
	Memory       int64  // bytes of device memory
	Granularity  int64  // of VMM mappings, bytes; 0: there are none
	WaveSize     int    // lanes that run in step
	Units        int    // compute units, SMs or CPUs
	LargeBAR     bool   // the CPU can reach all device memory
	CallerDriven bool   // kernels run on the thread that launches them; there are no resident kernels
	ClockHz      int64  // of the clock by which kernels that run on their own count time; 0: no such clock
	Exports      []ExportKind
	Imports      []ExportKind // what Import takes
}

// Runtime is one device and the library that drives it. All methods may be called from any goroutine.
type Runtime interface {
	Name() string // "host", "hip", "cuda"
	Facts() Facts
	Alloc(kind MemKind, size int64) (Memory, error)
	// Reserve sets aside address space for a DeviceVMM Range of at most max bytes, backed up to size now.
	Reserve(size, max int64) (Range, error)
	// Import maps memory exported elsewhere. It duplicates e.FD, which stays the caller's.
	Import(e Export) (Memory, error)
	// Register makes existing page-aligned host memory reachable by kernels and copies. The bytes must stay mapped until
	// the Memory is closed.
	Register(b []byte, as Registered) (Memory, error)
	Load(image []byte) (Module, error)
	NewStream() (Stream, error)
	Close() error
}

// Losable is a Runtime that finds out when its device is lost to this process, within seconds, though nobody uses it.
type Losable interface {
	// Lost is why, or nil.
	Lost() error
}

// Registered says what memory that is registered is.
type Registered uint8

const (
	RegisteredMemory   Registered = iota // ordinary pages
	RegisteredMMIO                       // a device's registers (a BAR)
	RegisteredReadOnly                   // pages that the device only reads: they may be mapped without PROT_WRITE, a file's for instance
)
