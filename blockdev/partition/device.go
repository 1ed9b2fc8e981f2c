package partition

import (
	"errors"
	"sync/atomic"

	"github.com/lanefs/lanefs/blockdev"
)

// Device is a partition: a range of a disk. It has the disk's buffers. Closing it flushes, and leaves the disk open.
type Device struct {
	disk   blockdev.Device
	part   Part
	info   blockdev.Info
	first  blockdev.Bytes
	closed atomic.Bool
}

// Open gives a partition of a disk as a device.
func Open(disk blockdev.Device, p Part) *Device {
	d := &Device{disk: disk, part: p, info: disk.Info()}
	d.first = blockdev.Bytes(p.First) * d.info.BlockSize
	d.info.Blocks = p.Blocks
	return d
}

// Part is which partition it is.
func (d *Device) Part() Part { return d.part }

// Info is the disk's, with the partition's size.
func (d *Device) Info() blockdev.Info { return d.info }

// Alloc gives a buffer of the disk's. See blockdev.Device.
func (d *Device) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	return d.disk.Alloc(n, use...)
}

// Do carries out the requests, concurrently and in no defined order. See blockdev.Device.
func (d *Device) Do(reqs ...*blockdev.Request) error {
	moved := make([]*blockdev.Request, 0, len(reqs))
	from := make([]*blockdev.Request, 0, len(reqs))
	for _, r := range reqs {
		if r.Err = r.Check(d.info); r.Err == nil && d.closed.Load() {
			r.Err = r.Fail(d.info, blockdev.ErrClosed)
		}
		if r.Err != nil {
			continue
		}
		m := *r
		if r.Op != blockdev.OpFlush {
			m.Off += d.first
		}
		moved, from = append(moved, &m), append(from, r)
	}
	if len(moved) > 0 && d.disk.Do(moved...) != nil {
		for i, m := range moved {
			from[i].Err = d.relative(m.Err)
		}
	}
	var worst error
	for _, r := range reqs {
		if worst == nil || r.Err != nil && errors.Is(worst, blockdev.ErrNoSpace) && !errors.Is(r.Err, blockdev.ErrNoSpace) {
			worst = r.Err
		}
	}
	return worst
}

// relative is an error of the disk as one of the partition.
func (d *Device) relative(err error) error {
	var e *blockdev.Error
	if !errors.As(err, &e) || e.Op == blockdev.OpFlush {
		return err
	}
	own := *e
	own.Off -= d.first
	own.LBA = blockdev.LBA(own.Off / d.info.BlockSize)
	return &own
}

// Read, Write, Flush, Discard and WriteZeroes are Do of one request.
func (d *Device) Read(off blockdev.Bytes, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpRead, Off: off, Bufs: bufs})
}

func (d *Device) Write(off blockdev.Bytes, fua bool, bufs ...blockdev.Slice) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWrite, Off: off, FUA: fua, Bufs: bufs})
}

func (d *Device) Flush() error { return d.Do(&blockdev.Request{Op: blockdev.OpFlush}) }

func (d *Device) Discard(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpDiscard, Off: off, Len: n})
}

func (d *Device) WriteZeroes(off, n blockdev.Bytes) error {
	return d.Do(&blockdev.Request{Op: blockdev.OpWriteZeroes, Off: off, Len: n})
}

// Close flushes. The disk stays open.
func (d *Device) Close() error {
	if d.closed.Load() {
		return blockdev.ErrClosed
	}
	var err error
	if !d.info.ReadOnly {
		err = d.Flush()
	}
	d.closed.Store(true)
	return err
}

// Reserve, Room and OnShort are the disk's, if its memory is bounded. See blockdev.Bounded.
func (d *Device) Reserve(use blockdev.Use, n int64) error {
	if b, ok := d.disk.(blockdev.Bounded); ok {
		return b.Reserve(use, n)
	}
	return nil
}

func (d *Device) Room(use blockdev.Use) int64 {
	if b, ok := d.disk.(blockdev.Bounded); ok {
		return b.Room(use)
	}
	return 1 << 40
}

func (d *Device) OnShort(f func()) {
	if b, ok := d.disk.(blockdev.Bounded); ok {
		b.OnShort(f)
	}
}
