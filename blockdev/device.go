// Package blockdev defines a block device: an array of logical blocks that is read, written, flushed, discarded and zeroed by Requests
// on Slices of pinned Buffers. Device is the interface, Bounded the one of a device whose memory for buffers is limited, Request.Check
// the rules that every device applies, Error the failure of a request.
//
// The package imports nothing else of LaneFS. blockdev/namespace implements Device by an NVMe namespace, and TestDevice, here, by a
// file: tests make it fail, tear writes and lose power. blockdev/blockdevtest is the conformance suite for both.
package blockdev

// Bytes is an offset or a length on the device, in bytes.
type Bytes int64

// LBA is a logical block address, in units of Info.BlockSize.
type LBA uint64

// Blocks is a number of logical blocks.
type Blocks uint64

// Info describes an open device. It does not change.
type Info struct {
	Name          string // as the user gave it: an image's path, a PCI address
	Model         string
	Serial        string
	Firmware      string
	NSID          uint32
	BlockSize     Bytes // of one LBA: a power of two, 512 to 4096 for a namespace
	Blocks        Blocks
	MaxTransfer   Bytes // of one command; a Request may be longer
	Queues        int   // I/O queue pairs, one lane each
	Depth         int   // commands in flight on one of them
	VolatileCache bool  // writes need Flush or FUA to be durable
	Discard       bool
	WriteZeroes   bool
	ReadOnly      bool
	Simulated     bool  // the controller is software
	Pinned        Bytes // limit of the memory for buffers; 0: no limit
}

// Size is the capacity in bytes.
func (i Info) Size() Bytes { return Bytes(i.Blocks) * i.BlockSize }

// Op is what a Request does.
type Op uint8

const (
	OpRead Op = iota + 1
	OpWrite
	OpFlush
	OpDiscard
	OpWriteZeroes
)

// Request is one operation. Off, Len and the length of each Slice are multiples of Info.BlockSize.
type Request struct {
	Op   Op
	Off  Bytes
	Bufs []Slice // of a read or write: filled or written one after the other
	Len  Bytes   // of a discard or write zeroes
	FUA  bool    // of a write: it is durable when Do returns
	Err  error   // the result, set by Do: nil or an *Error
}

// Buffer is memory that the device can reach by DMA. It has one owner, who gives it back with Release and does not use it after.
type Buffer interface {
	// Bytes is the CPU's view; nil for device memory that the CPU cannot reach.
	Bytes() []byte
	// Len is the size in bytes, at least that given to Alloc.
	Len() int
	// Slice is the part of n bytes from off.
	Slice(off, n int) Slice
	Release()
}

// Slice is a part of a Buffer.
type Slice struct {
	Buf Buffer
	Off int
	N   int
}

// Bytes is the CPU's view of the slice.
func (s Slice) Bytes() []byte { return s.Buf.Bytes()[s.Off : s.Off+s.N] }

// Device is an open namespace. All methods may be called from any goroutine.
type Device interface {
	Info() Info
	// Alloc gives a buffer of at least n bytes, aligned to 4096. Its contents are undefined. use is ForData unless given. Alloc may
	// wait for other buffers of the same use; see Use for what the caller may hold meanwhile. ErrNoMemory after a long time.
	Alloc(n int, use ...Use) (Buffer, error)
	// Do carries out the requests, concurrently and in no defined order, and returns when all have ended. Each request's result is
	// in its Err. Do returns the worst of them, an *Error, and of several the first: see Worse.
	Do(reqs ...*Request) error
	// Read, Write, Flush, Discard and WriteZeroes are Do of one request.
	Read(off Bytes, bufs ...Slice) error
	Write(off Bytes, fua bool, bufs ...Slice) error
	Flush() error
	Discard(off, n Bytes) error
	WriteZeroes(off, n Bytes) error
	// Close flushes and ends the device. Requests must have ended, and buffers be released.
	Close() error
}
