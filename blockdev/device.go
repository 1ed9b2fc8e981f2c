// Package blockdev has the interface of a block device, an array of bytes and blocks: read, write, flush, discard and write zeroes on
// slices of pinned buffers. It knows nothing of files, and nothing of what is behind the interface: blockdev/namespace is.
package blockdev

// Bytes is an offset or a length on the namespace, in bytes.
type Bytes int64

// LBA is a logical block address of the namespace, in units of Info.BlockSize.
type LBA uint64

// Blocks is a number of logical blocks.
type Blocks uint64

// Info is what is true of the namespace while it is open.
type Info struct {
	Name          string // what the user called it
	Model         string
	Serial        string
	Firmware      string
	NSID          uint32
	BlockSize     Bytes // of one LBA: 512 to 4096
	Blocks        Blocks
	MaxTransfer   Bytes // of one command
	Queues        int   // I/O queue pairs, one lane each
	Depth         int   // commands in flight on one of them
	VolatileCache bool  // writes need Flush or FUA to be durable
	Discard       bool
	WriteZeroes   bool
	ReadOnly      bool
	Simulated     bool  // the controller is software
	Pinned        Bytes // of memory for buffers at most; 0: no limit
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

// Request is one transfer. Off and the length of every Slice are multiples of Info.BlockSize.
type Request struct {
	Op   Op
	Off  Bytes
	Bufs []Slice // reads and writes: filled or written one after the other
	Len  Bytes   // discard and write zeroes
	FUA  bool    // write: durable when it returns
	Err  error   // set by Do
}

// Buffer is pinned memory of the runtime that the controller can reach. One owner; Release gives it back to the pool.
type Buffer interface {
	// Bytes is the CPU's view; nil for device memory that the CPU cannot reach.
	Bytes() []byte
	// Len is the size in bytes, at least what was asked for.
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
	// Alloc gives a buffer of at least n bytes, aligned to 4096. Its contents are undefined. It is for data unless a use is
	// given; see Use for who may wait. ErrNoMemory after a long time without any.
	Alloc(n int, use ...Use) (Buffer, error)
	// Do carries out the requests, concurrently and in no defined order, and returns when all have ended: nil, or the
	// first error, an *Error; one that is not ErrNoSpace goes before those that are. Each request's own result is in its Err.
	Do(reqs ...*Request) error
	// Read, Write, Flush, Discard and WriteZeroes are one request each.
	Read(off Bytes, bufs ...Slice) error
	Write(off Bytes, fua bool, bufs ...Slice) error
	Flush() error
	Discard(off, n Bytes) error
	WriteZeroes(off, n Bytes) error
	Close() error
}
