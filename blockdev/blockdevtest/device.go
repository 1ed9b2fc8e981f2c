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
	part, err := d.admit(r)
	if err != nil && part < 0 {
		return r.Fail(info, err)
	}
	if ioErr := d.transfer(r, part); ioErr != nil {
		return r.Fail(info, ioErr)
	}
	if err != nil {
		return r.Fail(info, err)
	}
	d.observe(r)
	return nil
}

// admit says whether r goes ahead. With an error, part is how many bytes of it are carried out all the same, -1 for none
// at all; without one it covers the whole request.
func (d *Device) admit(r *blockdev.Request) (part blockdev.Bytes, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return -1, blockdev.ErrClosed
	}
	if f := d.hitLocked(r); f != nil {
		if f.Partial > 0 {
			return f.Partial / d.info.BlockSize * d.info.BlockSize, f.err()
		}
		return -1, f.err()
	}
	return r.Length(), nil
}

func (d *Device) transfer(r *blockdev.Request, limit blockdev.Bytes) error {
	off := int64(r.Off)
	switch r.Op {
	case blockdev.OpRead, blockdev.OpWrite:
		left := int(limit)
		for _, s := range r.Bufs {
			b := s.Bytes()[:min(left, s.N)]
			var err error
			if r.Op == blockdev.OpRead {
				_, err = d.file.ReadAt(b, off)
			} else {
				err = d.store(off, b, r.FUA)
			}
			if err != nil {
				return err
			}
			off += int64(len(b))
			left -= len(b)
		}
		return nil
	case blockdev.OpFlush:
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.cache != nil {
			d.cache.flush()
		}
		return nil
	default:
		return d.zero(off, int64(limit))
	}
}

// zero punches a hole, so that a sparse image stays sparse.
func (d *Device) zero(off, n int64) error {
	if n == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cache != nil {
		if err := d.cache.save(d.file, off, n); err != nil {
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
