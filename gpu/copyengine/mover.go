// Package copyengine is a GPU's copy engines: what moves bytes between host memory and device memory that the CPU cannot address, without
// a kernel.
//
// An Engine has streams, on which copies run at the same time. It implements Mover, which moves one range and returns when it has arrived,
// and the interfaces that a caller may use if the Mover has them: Stager for buffers that it copies from and to directly, Piper for copies
// that go on while the caller prepares the next. Pin lets it copy directly from memory of the caller's. A Pool is streams
// for copies between two addresses of a runtime. Pieces of less than 256 KiB that are begun before a Wait go together, by one launch of a
// kernel, where that is faster (gather.go).
//
// The flow of a read from a file into device memory, as nvmeq/softctl does it:
//
//  1. Stage        pinned memory of the engine's
//  2. Pipe         a stream of its own
//  3. read         the file's next part into one half of the stage
//  4. Pipe.Wait    for the copy from the other half
//  5. Pipe.Write   begins the copy of this half, or collects it if it is small; 3 to 5 for all parts
//  6. Pipe.Close   waits for the last copy, and gives the stream back
package copyengine

import "github.com/lanefs/lanefs/gpu"

// Mover copies bytes to and from memory that the CPU cannot address. Offsets are bytes into m; both calls return when the bytes have
// arrived. They may be called from any goroutine.
type Mover interface {
	Read(dst []byte, m gpu.Memory, off int64) error
	Write(m gpu.Memory, off int64, src []byte) error
}

// Stager is a Mover that copies faster from and to memory of its own.
type Stager interface {
	Mover
	// Stage gives at least n bytes, until Unstage.
	Stage(n int64) ([]byte, error)
	Unstage(b []byte)
	// Leave is called in the place of Unstage after an ErrStuck.
	Leave(b []byte)
}

// Piper is a Mover that copies while its caller goes on.
type Piper interface {
	Mover
	Pipe() (Pipe, error)
}

// Pipe begins copies, whose targets must not overlap. src must not change, and dst is not filled, before Wait or Close has returned: both
// wait for all copies that were given. When they return an error any of these may be missing. One goroutine at a time may use a Pipe.
type Pipe interface {
	Write(m gpu.Memory, off int64, src []byte) error
	Read(dst []byte, m gpu.Memory, off int64) error
	Wait() error
	Close() error
}
