package device

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// Stage is ordinary memory through which bytes pass between files of a mount and memory that a GPU knows. A batch at a time uses it, in the order of the
// calls; others wait. For streams that do not depend on one another make a stage each. Its methods, and its files', may be called from any goroutine.
type Stage struct {
	lib     *library
	mu      sync.RWMutex // held for reading by calls; protects the fields below
	session uintptr      // 0: closed
	at      uintptr
}

// File is a file that a stage knows. The flags with which it was opened say whether it may be read or written.
type File struct {
	g      *Stage
	mu     sync.RWMutex // held for reading by calls; taken before the stage's
	handle uint32
	closed bool // protected by mu
}

// Ways counts pieces of a stage, of 1 MiB at most, by how they were moved between the stage and memory.
type Ways struct {
	Kernel uint64 // many by one launch of a kernel
	Copies uint64 // a copy each, of the GPU's copy engine
	Host   uint64 // by the CPU, to memory that no GPU knows
	Direct uint64 // without the stage, into memory that the daemon has
	Legacy uint64 // without the stage, by legacy IPC: LANEFS_LEGACY in lanefs(3)
}

// New makes a stage for files of the mount that f is on, of size bytes of memory: 1 MiB to 256 MiB, or 0 for 64 MiB. f may be closed
// afterwards. A child process makes its own.
//
// The error wraps ErrNoLibrary without the C library, lanefs.ErrNotLaneFS if f is not on a LaneFS mount with a share; EINVAL, the size is none; and the errnos of
// lanefs_connect and lanefs_stage_new (lanefs.h), ECONNRESET if the daemon has ended, ENOMEM and EMFILE if the user has as much as one may.
func New(f *os.File, size int64) (*Stage, error) {
	l, err := openLibrary()
	if err != nil {
		return nil, err
	}
	g := &Stage{lib: l}
	if err := control(f, func(fd uintptr) (err error) { g.session, err = l.call(l.connect, isNull, fd); return err }); err != nil {
		if errors.Is(err, unix.ENOTSUP) {
			err = lanefs.ErrNotLaneFS
		}
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	if size < 0 {
		size = 1 // no size of a stage: the library says which are
	}
	if g.at, err = l.call(l.stageNew, isNull, g.session, uintptr(size)); err != nil {
		l.call(l.closeSession, never, g.session)
		return nil, fmt.Errorf("a stage of %d bytes: %w", size, err)
	}
	if !g.writesOnce() {
		return nil, errors.Join(fmt.Errorf("%w: it is too old", ErrNoLibrary), g.Close())
	}
	return g, nil
}

// writesOnce says whether the library leaves done alone until a batch has ended. The first ones did not: then nothing tells how long the cells must stay.
func (g *Stage) writesOnce() bool {
	done, beyond := []int64{notDone}, []lanefs.Piece{{Off: math.MaxInt64, Len: 1}} // of which no file has a byte, so nothing is put on a stream
	g.lib.call(g.lib.readAsync, never, g.at, 0, 0, uintptr(unsafe.Pointer(&beyond[0])), 1, 0, 0, uintptr(unsafe.Pointer(&done[0])))
	return done[0] == notDone
}

// Open makes f known to the stage. f may be closed afterwards. Errors: EXDEV, it is of another mount; EINVAL, it is no regular file; EBADF, it was opened with O_PATH;
// EMFILE, there are as many as there may be; ECONNRESET, the daemon has ended; os.ErrClosed, the stage was closed.
func (g *Stage) Open(f *os.File) (*File, error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.session == 0 {
		return nil, fmt.Errorf("the stage: %w", os.ErrClosed)
	}
	h := new(uint32)
	if err := control(f, func(fd uintptr) error {
		_, err := g.lib.call(g.lib.open, isNone, g.session, fd, uintptr(unsafe.Pointer(h)))
		return err
	}); err != nil {
		return nil, fmt.Errorf("%q: %w", f.Name(), err)
	}
	return &File{g: g, handle: *h}, nil
}

// Ways says how pieces went so far. All are 0 of a stage that was closed.
func (g *Stage) Ways() Ways {
	g.mu.RLock()
	defer g.mu.RUnlock()
	w := new([8]uint64) // struct lanefs_ways
	if g.at != 0 {
		g.lib.call(g.lib.stageWays, never, g.at, uintptr(unsafe.Pointer(w)))
	}
	return Ways{Kernel: w[0], Copies: w[1], Host: w[2], Direct: w[3], Legacy: w[4]}
}

// Close waits for the calls under way and for what the stage has on streams, and ends the stage and its files. os.ErrClosed: it was closed.
func (g *Stage) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.session == 0 {
		return os.ErrClosed
	}
	g.lib.call(g.lib.stageFree, never, g.at)
	g.lib.call(g.lib.closeSession, never, g.session)
	g.session, g.at = 0, 0
	sweep(nil)
	return nil
}

// Close makes the stage forget the file, after the calls that name it. Errors: EBUSY, a batch of it is on a stream that has not come past it, and the file is open as before;
// os.ErrClosed, it was closed, or its stage; ECONNRESET, the daemon has ended.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.g.mu.RLock()
	defer f.g.mu.RUnlock()
	if f.closed || f.g.session == 0 {
		return os.ErrClosed
	}
	if sweep(f) {
		return fmt.Errorf("a batch of the file is on a stream: %w", unix.EBUSY)
	}
	f.closed = true
	_, err := f.g.lib.call(f.g.lib.release, isNone, f.g.session, uintptr(f.handle))
	return err
}

// Read reads pieces of the file into size bytes of memory at address at. It returns how many bytes each piece has, fewer than asked for at the end of the file or
// with an error of its own, the rest of the piece in memory being zero then; and the first error of a piece. Pieces must not overlap in memory.
//
// The memory is written to in the order of stream: after what is on it now, before what is put there later. The call waits for the file, not for
// the stream. Memory of the CPU's that is given without a stream, pinned or not, is written to when the call returns.
//
// Errors of a piece, after which the others are moved all the same: EACCES, the file was not opened for that; EIO and others of read(2); ESHUTDOWN, the mount ends.
// Of the batch, with no results: EINVAL, a piece is not within the memory or beyond the end of any file, pieces are in memory of several devices, or memory that no GPU knows is given with a
// stream; EFAULT, a piece ends beyond its allocation; ECONNRESET, the daemon has ended; EIO, ENOMEM or ENOENT with the text of
// what the GPU's library said, also of a stream that is none; os.ErrClosed, the file or its stage was closed.
func (f *File) Read(at uintptr, size int64, pieces []lanefs.Piece, stream uintptr) ([]int64, error) {
	return f.batch(f.g.lib.readBatch, at, size, pieces, stream)
}

// Write writes pieces of memory to the file likewise: what the memory holds after what is on the stream now. The call waits for both. fsync makes the bytes
// durable. Errors: as Read; of a piece also ENOSPC and others of write(2).
func (f *File) Write(at uintptr, size int64, pieces []lanefs.Piece, stream uintptr) ([]int64, error) {
	return f.batch(f.g.lib.writeBatch, at, size, pieces, stream)
}

func (f *File) batch(function, at uintptr, size int64, pieces []lanefs.Piece, stream uintptr) ([]int64, error) {
	done, err := f.begin(size, pieces)
	if err != nil {
		return nil, err
	}
	defer done()
	results := make([]int64, len(pieces))
	_, err = f.g.lib.call(function, isNone64, f.g.at, uintptr(f.handle), at, uintptr(unsafe.Pointer(unsafe.SliceData(pieces))), uintptr(len(pieces)), stream,
		uintptr(unsafe.Pointer(unsafe.SliceData(results))))
	if err != nil {
		return nil, err
	}
	return results, settle(results)
}

// begin looks whether a batch can be, and keeps the file and its stage open until done is called.
func (f *File) begin(size int64, pieces []lanefs.Piece) (done func(), err error) {
	for i, p := range pieces {
		if p.Off < 0 || p.Len < 0 || p.MemOff < 0 || p.MemOff > size-p.Len {
			return nil, fmt.Errorf("piece %d, %d bytes at %d, does not fit in memory of %d bytes: %w", i, p.Len, p.MemOff, size, unix.EINVAL)
		}
	}
	f.mu.RLock()
	f.g.mu.RLock()
	done = func() { f.g.mu.RUnlock(); f.mu.RUnlock() }
	if f.closed || f.g.session == 0 {
		done()
		return nil, os.ErrClosed
	}
	return done, nil
}

// settle makes the library's results, in which a negative one is an errno, those of Read; and returns the first error.
func settle(results []int64) (first error) {
	for i, n := range results {
		if n >= 0 {
			continue
		}
		if first == nil {
			first = fmt.Errorf("piece %d: %w", i, unix.Errno(-n))
		}
		results[i] = 0
	}
	return first
}
