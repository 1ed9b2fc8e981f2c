// Package blockdevtest is a blockdev.Device for tests of what stands on one: a file in memory or on disk, no queues and
// no lanes. It checks requests as the real device does, loses power and goes bad on demand, and shows what it was asked.
//
// The nouns: a Device is the double. A Fault makes some of its requests fail, or wait (Hold). An Event is a request that it carried
// out. A buffer that was released is overwritten, so that whoever still uses it finds out.
package blockdevtest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
)

// Device is the double. All methods may be called from any goroutine.
type Device struct {
	file *os.File
	bufs atomic.Int64 // buffers not yet released

	mu       sync.Mutex
	info     blockdev.Info // protected by mu, as is all below
	closed   bool
	faults   []*fault
	short    []*shortage
	holds    []*hold
	observer func(Event)
	cache    *cache // nil: writes are durable at once
}

// NewMem makes a device of size bytes in memory, all zero and sparse. Size is a multiple of blockSize.
func NewMem(size, blockSize int64) *Device {
	fd, err := unix.MemfdCreate("blockdevtest", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		panic(fmt.Sprintf("blockdevtest: %d bytes of memory: %v", size, err))
	}
	d, err := newDevice(os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd)), size, blockSize)
	if err != nil {
		panic("blockdevtest: " + err.Error())
	}
	return d
}

// OpenFile makes a device of an existing image file. What does not fill a block at its end is left out.
func OpenFile(path string, blockSize int64) (*Device, error) {
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

func newDevice(f *os.File, size, blockSize int64) (*Device, error) {
	if blockSize < 512 || blockSize > 65536 || blockSize&(blockSize-1) != 0 || size%blockSize != 0 {
		return nil, fmt.Errorf("%d bytes in blocks of %d", size, blockSize)
	}
	return &Device{file: f, info: blockdev.Info{
		Name: f.Name(), Model: "blockdevtest", Serial: "0", NSID: 1,
		BlockSize: blockdev.Bytes(blockSize), Blocks: blockdev.Blocks(size / blockSize),
		MaxTransfer: 1 << 20, Queues: 1, Depth: 1, VolatileCache: true, Discard: true, WriteZeroes: true, Simulated: true,
	}}, nil
}

// Info says what the device is.
func (d *Device) Info() blockdev.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// Modify lets a test change what the device says of itself: read-only, no discard.
func (d *Device) Modify(f func(*blockdev.Info)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.info)
}

// File is the image behind the device.
func (d *Device) File() *os.File { return d.file }

// Path is the image's name. That of a device in memory is good in this process only; a child is given File.
func (d *Device) Path() string { return d.file.Name() }

// Outstanding is the number of buffers that were allocated and not released.
func (d *Device) Outstanding() int { return int(d.bufs.Load()) }

// Do carries out the requests one after the other.
func (d *Device) Do(reqs ...*blockdev.Request) error {
	var first error
	for _, r := range reqs {
		r.Err = d.do(r)
		if first == nil {
			first = r.Err
		}
	}
	return first
}

func (d *Device) do(r *blockdev.Request) error {
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

// admit says whether r goes ahead. With an error, carried says which of its blocks are carried out all the same, nil that
// none is; without one it is nil, and all are.
func (d *Device) admit(r *blockdev.Request) (carried func(block int) bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, blockdev.ErrClosed
	}
	if f := d.hitLocked(r); f != nil {
		if f.Lose && r.Op == blockdev.OpFlush && d.cache != nil {
			d.cache.lose(int64(d.info.BlockSize))
		}
		return f.carried(r, d.info.BlockSize), f.err(r)
	}
	return nil, nil
}

// transfer carries out the blocks of r that carried names, all if it is nil.
func (d *Device) transfer(r *blockdev.Request, carried func(block int) bool) error {
	off, bs := int64(r.Off), int64(d.Info().BlockSize)
	switch r.Op {
	case blockdev.OpRead, blockdev.OpWrite:
		done := int64(0) // bytes of the slices before
		for _, s := range r.Bufs {
			err := runs(int64(s.N), done, bs, carried, func(at, n int64) (err error) {
				b := s.Bytes()[at : at+n]
				if r.Op == blockdev.OpRead {
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
	case blockdev.OpFlush:
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

// runs calls f with the parts of n bytes that consist of blocks which carried names, the first of them number first/bs.
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
func (d *Device) zero(off, n int64) error {
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
func (d *Device) Read(off blockdev.Bytes, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpRead, Off: off, Bufs: bufs})
}

// Write writes bufs at off.
func (d *Device) Write(off blockdev.Bytes, fua bool, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

// Flush makes every write that has returned durable.
func (d *Device) Flush() error { return d.Do(&blockdev.Request{Op: blockdev.OpFlush}) }

// Discard forgets n bytes at off; they read as zero.
func (d *Device) Discard(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpDiscard, Off: off, Len: n})
}

// WriteZeroes writes n zero bytes at off.
func (d *Device) WriteZeroes(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: off, Len: n})
}

// Close ends the device; the image file is closed with it.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return blockdev.ErrClosed
	}
	d.closed = true
	return errors.Join(d.file.Sync(), d.file.Close())
}
