package partition

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
)

// Device is a partition: a range of a disk. It has the disk's buffers. Closing it flushes, and leaves the disk open.
type Device struct {
	blockdev.Singly
	blockdev.BoundBelow
	disk   blockdev.Device
	part   Part
	info   blockdev.Info
	first  blockdev.Bytes
	ending blockdev.Ending
}

// Open gives a partition of a disk as a device.
func Open(disk blockdev.Device, p Part) *Device {
	d := &Device{BoundBelow: blockdev.BoundBy(disk), disk: disk, part: p, info: disk.Info()}
	d.Singly = blockdev.OneByOne(d.Do)
	d.first = blockdev.Bytes(p.First) * d.info.BlockSize
	d.info.Name = fmt.Sprintf("%s-part%d", d.info.Name, p.Number)
	d.info.Blocks = p.Blocks
	return d
}

// Part is which partition it is.
func (d *Device) Part() Part { return d.part }

// Info is the disk's, with the partition's name, as the user gives it, and size.
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
		if r.Err = r.Check(d.info); r.Err == nil && d.ending.Closed() {
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
		worst = blockdev.Worse(worst, r.Err)
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

// Close flushes. The disk stays open.
func (d *Device) Close() error { return d.ending.End(d) }
