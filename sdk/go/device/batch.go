package device

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// Batch is a batch that was put on a stream.
type Batch struct {
	f     *File
	cells []int64 // what the library writes: done, and then the result of each piece
	pin   runtime.Pinner
}

// What done is until the batch has ended: no number of bytes, and no negative errno.
const notDone = math.MinInt64

// underWay are the batches whose cells the library may still write to. They are pinned.
var underWay struct {
	sync.Mutex
	batches []*Batch
}

// ReadAsync puts a batch as Read's on a stream. It returns at once, but where the stage has no room: then it waits for the batches before it on the stage, and one that is larger
// than the stage for the stream. What is put on the stream later finds the bytes in memory. pieces may be used for something else when it returns; the memory must stay until the stream has come past the batch.
// Where a GPU's streams cannot wait for the host, and for memory that no GPU knows, the call does all of it.
//
// Errors: as Read's of a batch, of what is found before anything is on the stream; Batch.Result has the rest.
func (f *File) ReadAsync(at uintptr, size int64, pieces []lanefs.Piece, stream uintptr) (*Batch, error) {
	return f.start(f.g.lib.readAsync, at, size, pieces, stream)
}

// WriteAsync puts a batch as Write's on a stream likewise: when the stream has come past it the bytes are in the file. Errors: as ReadAsync.
func (f *File) WriteAsync(at uintptr, size int64, pieces []lanefs.Piece, stream uintptr) (*Batch, error) {
	return f.start(f.g.lib.writeAsync, at, size, pieces, stream)
}

func (f *File) start(function, at uintptr, size int64, pieces []lanefs.Piece, stream uintptr) (*Batch, error) {
	done, err := f.begin(size, pieces)
	if err != nil {
		return nil, err
	}
	defer done()
	b := &Batch{f: f, cells: make([]int64, 1+len(pieces))}
	b.cells[0] = notDone
	sweep(nil)
	b.hold()
	_, err = f.g.lib.call(function, isNone, f.g.at, uintptr(f.handle), at, uintptr(unsafe.Pointer(unsafe.SliceData(pieces))), uintptr(len(pieces)), stream,
		uintptr(unsafe.Pointer(unsafe.SliceData(b.cells[1:]))), uintptr(unsafe.Pointer(&b.cells[0])))
	if err != nil {
		atomic.StoreInt64(&b.cells[0], 0) // nothing is on the stream
		sweep(nil)
		return nil, err
	}
	return b, nil
}

// Result is as Read's, when the stream has come past the batch: the program knows that from the driver, by a call that waits for the stream or an event behind
// the batch. It may be called again.
//
// Errors: EINPROGRESS, the stream has not come that far; else as Read's, ECONNRESET if the daemon has ended, EIO or ENOMEM of the GPU's library.
func (b *Batch) Result() ([]int64, error) {
	if !b.ended() {
		return nil, fmt.Errorf("the stream has not come past the batch: %w", unix.EINPROGRESS)
	}
	sweep(nil)
	if n := b.cells[0]; n < 0 {
		return nil, unix.Errno(-n)
	}
	results := slices.Clone(b.cells[1:])
	return results, settle(results)
}

// ended says whether the library has written all it will.
func (b *Batch) ended() bool { return atomic.LoadInt64(&b.cells[0]) != notDone }

// hold keeps the cells where they are until sweep finds that the batch has ended.
func (b *Batch) hold() {
	b.pin.Pin(&b.cells[0])
	underWay.Lock()
	defer underWay.Unlock()
	underWay.batches = append(underWay.batches, b)
}

// sweep lets go of batches that have ended, and says whether there are others of f.
func sweep(f *File) (others bool) {
	underWay.Lock()
	defer underWay.Unlock()
	underWay.batches = slices.DeleteFunc(underWay.batches, func(b *Batch) bool {
		if b.ended() {
			b.pin.Unpin()
			return true
		}
		others = others || b.f == f
		return false
	})
	return others
}
