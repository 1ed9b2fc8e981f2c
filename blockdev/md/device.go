package md

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/lanefs/lanefs/blockdev"
)

// Device is an array. It has the buffers of the member with role 0. Closing it flushes, and leaves the members open.
//
// A request goes to each member that it touches as one request, of the parts that are there: chunks of a zone that follow one another on the
// array follow one another on their members. The members' parts are carried out at the same time. A flush goes to all.
type Device struct {
	blockdev.Singly
	blockdev.BoundBelow
	set    set
	info   blockdev.Info
	zones  []zone
	ending blockdev.Ending
}

// Open assembles an array. members may be in any order. The error says what of a set is not as it must be, by the member's name.
func Open(members []Member) (*Device, error) {
	all, err := newSet(members)
	if err != nil {
		return nil, err
	}
	list, err := all.zones()
	if err != nil {
		return nil, err
	}
	block := all.block()
	if err := all.aligned(block, list); err != nil {
		return nil, err
	}
	d := &Device{BoundBelow: blockdev.BoundBy(all[0].Dev), set: all, zones: list, info: all.describe(block, list)}
	d.Singly = blockdev.OneByOne(d.Do)
	return d, nil
}

// aligned says whether whole blocks of the array are whole blocks of one member.
func (all set) aligned(block blockdev.Bytes, list []zone) error {
	if len(list) == 0 {
		return fmt.Errorf("%s has no room for data", all[0].super.Array())
	}
	for _, m := range all {
		if off := blockdev.Bytes(m.super.DataOffset) * sector; off%block != 0 {
			return fmt.Errorf("%s: its data begin at byte %d, within a block of %d", m.Name, off, block)
		}
	}
	for _, z := range list {
		if z.chunk%block != 0 {
			return fmt.Errorf("%s has pieces of %d bytes, not a multiple of a block of %d", all[0].super.Array(), z.chunk, block)
		}
	}
	return nil
}

// describe is the array's Info: what all members can do.
func (all set) describe(block blockdev.Bytes, list []zone) blockdev.Info {
	i := all[0].Dev.Info()
	var names []string
	i.Queues = 0
	for _, m := range all {
		n := m.Dev.Info()
		names = append(names, m.Name)
		i.MaxTransfer, i.Depth = min(i.MaxTransfer, n.MaxTransfer), min(i.Depth, n.Depth)
		i.Queues += n.Queues
		i.VolatileCache = i.VolatileCache || n.VolatileCache
		i.ReadOnly = i.ReadOnly || n.ReadOnly
		i.Simulated = i.Simulated || n.Simulated
		i.Discard = i.Discard && n.Discard
		i.WriteZeroes = i.WriteZeroes && n.WriteZeroes
	}
	i.Name = strings.Join(names, ",")
	i.Model = fmt.Sprintf("md %s of %d", all[0].super.LevelName(), len(all))
	i.Serial, i.Firmware = all[0].super.UUID(), ""
	i.BlockSize, i.Blocks = block, blockdev.Blocks(list[len(list)-1].end/block)
	i.MaxTransfer = max(i.MaxTransfer, block)
	return i
}

// Info describes the array. Its limits are those of the weakest member, its queues those of all.
func (d *Device) Info() blockdev.Info { return d.info }

// Alloc gives a buffer. See blockdev.Device.
func (d *Device) Alloc(n int, use ...blockdev.Use) (blockdev.Buffer, error) {
	return d.set[0].Dev.Alloc(n, use...)
}

// part is what a request asks of one member.
type part struct {
	blockdev.Request
	of     *blockdev.Request
	member int
}

// Do carries out the requests, concurrently and in no defined order. See blockdev.Device.
func (d *Device) Do(reqs ...*blockdev.Request) error {
	parts := make([][]*part, len(d.set))
	for _, r := range reqs {
		if r.Err = r.Check(d.info); r.Err == nil && d.ending.Closed() {
			r.Err = r.Fail(d.info, blockdev.ErrClosed)
		}
		if r.Err == nil {
			d.split(parts, r)
		}
	}
	d.carryOut(parts)
	var worst error
	for _, list := range parts {
		for _, p := range list {
			if p.Err != nil {
				p.of.Err = blockdev.Worse(p.of.Err, d.explain(p))
			}
		}
	}
	for _, r := range reqs {
		worst = blockdev.Worse(worst, r.Err)
	}
	return worst
}

// carryOut does each member's parts, the members at the same time.
func (d *Device) carryOut(parts [][]*part) {
	last := -1
	var wg sync.WaitGroup
	for m, list := range parts {
		if len(list) == 0 {
			continue
		}
		if other := last; other >= 0 {
			wg.Go(func() { d.member(other, parts[other]) })
		}
		last = m
	}
	if last >= 0 {
		d.member(last, parts[last]) // a request to one member needs no goroutine
	}
	wg.Wait()
}

func (d *Device) member(m int, list []*part) {
	reqs := make([]*blockdev.Request, len(list))
	for i, p := range list {
		reqs[i] = &p.Request
	}
	_ = d.set[m].Dev.Do(reqs...) // each part has its error
}

// split appends r's parts, which is checked, to those of the members.
func (d *Device) split(parts [][]*part, r *blockdev.Request) {
	switch r.Op {
	case blockdev.OpFlush:
		for m := range d.set {
			parts[m] = append(parts[m], &part{Request: blockdev.Request{Op: r.Op}, of: r, member: m})
		}
	case blockdev.OpRead, blockdev.OpWrite:
		d.splitData(parts, r)
	default:
		d.splitRange(parts, r)
	}
}

// splitData splits a read or write at the ends of chunks.
func (d *Device) splitData(parts [][]*part, r *blockdev.Request) {
	off := r.Off
	for _, s := range r.Bufs {
		for s.N > 0 {
			z := find(d.zones, off)
			m, at, left := z.locate(off)
			n := min(int(min(left, blockdev.Bytes(s.N))), s.N)
			p := d.extend(parts, r, m, at)
			p.Bufs = append(p.Bufs, blockdev.Slice{Buf: s.Buf, Off: s.Off, N: n})
			p.Len += blockdev.Bytes(n) // as far as it goes: a read or write has no other use of it
			s.Off, s.N, off = s.Off+n, s.N-n, off+blockdev.Bytes(n)
		}
	}
}

// extend is r's part on a member that goes on at `at` of the array's data there, or a new one.
func (d *Device) extend(parts [][]*part, r *blockdev.Request, m int, at blockdev.Bytes) *part {
	off := d.dataOffset(m) + at
	if list := parts[m]; len(list) > 0 {
		if p := list[len(list)-1]; p.of == r && p.Off+p.Len == off {
			return p
		}
	}
	p := &part{Request: blockdev.Request{Op: r.Op, Off: off, FUA: r.FUA}, of: r, member: m}
	parts[m] = append(parts[m], p)
	return p
}

// splitRange splits a discard, or a write of zeroes: of each zone a member has one range.
func (d *Device) splitRange(parts [][]*part, r *blockdev.Request) {
	for i := range d.zones {
		z := &d.zones[i]
		from, to := max(r.Off, z.start), min(r.Off+r.Len, z.end)
		if from >= to {
			continue
		}
		for column, m := range z.members {
			if lo, hi := z.before(from, column), z.before(to, column); lo < hi {
				d.extend(parts, r, m, z.first+lo).Len += hi - lo
			}
		}
	}
}

func (d *Device) dataOffset(m int) blockdev.Bytes {
	return blockdev.Bytes(d.set[m].super.DataOffset) * sector
}

// explain is the error of a part as one of the array: it names the member, and where in the array the first bytes are that failed.
func (d *Device) explain(p *part) error {
	why := p.Err
	e := &blockdev.Error{Op: p.Op, Off: p.of.Off, Len: max(p.of.Length(), 0)}
	var inner *blockdev.Error
	if errors.As(why, &inner) {
		why = inner.Err
		if p.Op != blockdev.OpFlush {
			off, left := back(d.zones, p.member, inner.Off-d.dataOffset(p.member))
			e.Off, e.Len = off, min(inner.Len, left)
		}
	}
	e.LBA = blockdev.LBA(e.Off / d.info.BlockSize)
	e.Err = fmt.Errorf("member %s: %w", d.set[p.member].Name, why)
	return e
}

// Close flushes. The members stay open.
func (d *Device) Close() error { return d.ending.End(d) }
