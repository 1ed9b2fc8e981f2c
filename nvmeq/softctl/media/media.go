// Package media is what a software NVMe controller keeps its blocks on: an image file, which it reads and writes through the page cache,
// or a block device, which it reads and writes round it.
//
// A Medium is a range of bytes that is read, written, zeroed and flushed. An Image is the Medium on an image file or block device. It
// remembers what may be lost: an error of synchronization, which Linux reports once, and a truncation. Buffers is where a command's data
// is in host memory. A Chunk is a part of the image whose pages in the page cache are pinned, so that a copy engine reads them in place.
// A Ring moves blocks of a device, many at a time, by io_uring.
// A Recorder logs what reaches an image; a Replay rebuilds from its Recording what a power cut could have left.
//
// Offsets and lengths are bytes and multiples of the block size, unless a comment says otherwise. It knows nothing of NVMe.
package media

// Medium holds a namespace's blocks. Its methods may be called from any goroutine.
//
// arrival is the Recorder's position when the host had announced the command: a command that was announced before a power cut may have
// reached the medium in part. Without a recorder it is not used.
type Medium interface {
	// Read fills b from off.
	Read(b *Buffers, off int64) error
	// View is the beginning of a range in memory that a copy engine reads, until the chunk is released; nil if there is none. look has the
	// image's length looked at before: of many views at once the first does.
	View(off, n int64, look bool) (*Chunk, []byte)
	// Missed follows a View that gave nothing, of bytes that are read by a system call instead: what is read so twice View may give later.
	Missed(off, n int64)
	// Write returns when the data is on the medium if durable, else when reads see it.
	Write(b *Buffers, off int64, durable bool, arrival uint64) error
	// Zero makes a range read as zeroes, giving the space back where it can.
	Zero(off, n int64, durable bool, arrival uint64) error
	// Discard says that a range is not used any more. What it reads as then is not known.
	Discard(off, n int64) error
	// Flush returns when all that was written before is durable.
	Flush() error
	// FlushesAtOnce says that Flush waits for nothing: there is no disk below.
	FlushesAtOnce() bool
}
