package blockdev

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// TestDevice is a Device on a file, in memory or on disk, for tests of code that uses a Device. Tests can make requests fail (Inject) or
// wait (Hold), allocations fail (Shorten), and writes be lost (CacheWrites, Cut), and can watch the requests (Observe). It overwrites
// released buffers, so that a use after release shows. All methods may be called from any goroutine.
type TestDevice struct {
	file *os.File
	bufs atomic.Int64 // buffers not yet released

	mu       sync.Mutex
	info     Info // protected by mu, as is all below
	closed   bool
	faults   []*fault
	short    []*shortage
	holds    []*hold
	observer func(Event)
	cache    *cache // nil: writes are durable at once
}

// NewMem makes a device of size bytes in memory, all zero and sparse. Size is a multiple of blockSize.
func NewMem(size, blockSize int64) *TestDevice {
	fd, err := unix.MemfdCreate("blockdev", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		panic(fmt.Sprintf("blockdev: %d bytes of memory: %v", size, err))
	}
	d, err := newDevice(os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd)), size, blockSize)
	if err != nil {
		panic("blockdev: " + err.Error())
	}
	return d
}

// OpenFile makes a device of an existing image file. What does not fill a block at its end is left out.
func OpenFile(path string, blockSize int64) (*TestDevice, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if blockSize > 0 {
		d, err := newDevice(f, st.Size()/blockSize*blockSize, blockSize)
		if err == nil {
			return d, nil
		}
	}
	f.Close()
	return nil, fmt.Errorf("%q: block size %d is not a power of two from 512 to 65536", path, blockSize)
}

func newDevice(f *os.File, size, blockSize int64) (*TestDevice, error) {
	if blockSize < 512 || blockSize > 65536 || blockSize&(blockSize-1) != 0 || size%blockSize != 0 {
		return nil, fmt.Errorf("%d bytes in blocks of %d", size, blockSize)
	}
	return &TestDevice{file: f, info: Info{
		Name: f.Name(), Model: "test device", Serial: "0", NSID: 1,
		BlockSize: Bytes(blockSize), Blocks: Blocks(size / blockSize),
		MaxTransfer: 1 << 20, Queues: 1, Depth: 1, VolatileCache: true, Discard: true, WriteZeroes: true, Simulated: true,
	}}, nil
}

// Info describes the device.
func (d *TestDevice) Info() Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// Modify changes what Info returns, such as ReadOnly or Discard.
func (d *TestDevice) Modify(f func(*Info)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.info)
}

// File is the image behind the device.
func (d *TestDevice) File() *os.File { return d.file }

// Path is the image's name. For a device in memory it is valid in this process only; a child process must inherit File.
func (d *TestDevice) Path() string { return d.file.Name() }

// Outstanding is the number of buffers that are allocated and not released.
func (d *TestDevice) Outstanding() int { return int(d.bufs.Load()) }

// Do carries out the requests one after the other.
func (d *TestDevice) Do(reqs ...*Request) error {
	var first error
	for _, r := range reqs {
		r.Err = d.do(r)
		if first == nil {
			first = r.Err
		}
	}
	return first
}

func (d *TestDevice) do(r *Request) error {
	info := d.Info()
	if err := r.Check(info); err != nil {
		return err
	}
	d.await(r)
	carried, err := d.admit(r)
	if err != nil && carried == nil {
		return r.Fail(info, err)
	}
	if ioErr := d.transfer(r, carried); ioErr != nil {
		return r.Fail(info, ioErr)
	}
	if err != nil {
		return r.Fail(info, err)
	}
	d.observe(r)
	return nil
}

// admit returns the error of the fault that r meets. With an error, carried says which of its blocks are carried out all the same; nil:
// none. Without an error all blocks are carried out, and carried is nil.
func (d *TestDevice) admit(r *Request) (carried func(block int) bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	if f := d.hitLocked(r); f != nil {
		if f.Lose && r.Op == OpFlush && d.cache != nil {
			d.cache.lose(int64(d.info.BlockSize))
		}
		return f.carried(r, d.info.BlockSize), f.err(r)
	}
	return nil, nil
}

// transfer carries out the blocks of r for which carried is true; nil: all.
func (d *TestDevice) transfer(r *Request, carried func(block int) bool) error {
	off, bs := int64(r.Off), int64(d.Info().BlockSize)
	switch r.Op {
	case OpRead, OpWrite:
		done := int64(0) // bytes of the slices before
		for _, s := range r.Bufs {
			err := runs(int64(s.N), done, bs, carried, func(at, n int64) (err error) {
				b := s.Bytes()[at : at+n]
				if r.Op == OpRead {
					_, err = d.file.ReadAt(b, off+done+at)
				} else {
					err = d.store(off+done+at, b, r.FUA)
				}
				return err
			})
			if err != nil {
				return err
			}
			done += int64(s.N)
		}
		return nil
	case OpFlush:
		if carried != nil && !carried(0) {
			return nil
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.cache != nil {
			d.cache.flush()
		}
		return nil
	default:
		return runs(int64(r.Length()), 0, bs, carried, func(at, n int64) error { return d.zero(off+at, n) })
	}
}

// runs calls f with each run of the n bytes whose blocks, numbered from first/bs, are carried out.
func runs(n, first, bs int64, carried func(block int) bool, f func(at, n int64) error) error {
	if carried == nil {
		return f(0, n)
	}
	for at := int64(0); at < n; {
		end := at
		for end < n && carried(int((first+end)/bs)) {
			end += bs
		}
		if end > at {
			if err := f(at, end-at); err != nil {
				return err
			}
		}
		at = end + bs
	}
	return nil
}

// zero punches a hole, so that a sparse image stays sparse.
func (d *TestDevice) zero(off, n int64) error {
	if n == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cache != nil {
		if err := d.cache.save(d.file, off, n, int64(d.info.BlockSize)); err != nil {
			return err
		}
	}
	return unix.Fallocate(int(d.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// Read fills bufs from off.
func (d *TestDevice) Read(off Bytes, bufs ...Slice) error {
	return d.Do(&Request{Op: OpRead, Off: off, Bufs: bufs})
}

// Write writes bufs at off.
func (d *TestDevice) Write(off Bytes, fua bool, bufs ...Slice) error {
	return d.Do(&Request{Op: OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

// Flush makes every write that has returned durable.
func (d *TestDevice) Flush() error { return d.Do(&Request{Op: OpFlush}) }

// Discard deallocates n bytes at off; they read as zero.
func (d *TestDevice) Discard(off, n Bytes) error {
	return d.Do(&Request{Op: OpDiscard, Off: off, Len: n})
}

// WriteZeroes writes n zero bytes at off.
func (d *TestDevice) WriteZeroes(off, n Bytes) error {
	return d.Do(&Request{Op: OpWriteZeroes, Off: off, Len: n})
}

// Close ends the device; the image file is closed with it.
func (d *TestDevice) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	d.closed = true
	return errors.Join(d.file.Sync(), d.file.Close())
}
