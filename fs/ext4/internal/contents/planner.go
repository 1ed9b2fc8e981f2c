package contents

import (
	"sync"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// planner makes the device's requests of the transfers of one call. Its memory is used again.
type planner struct {
	i    *volume.Inode
	look *looking
	reqs []*blockdev.Request
	all  []*planned // all that it ever made: the first reqs of them are in use, and more after a transfer that failed
	made int        // of all, in use
}

// planned is a request of one range of memory.
type planned struct {
	blockdev.Request
	bufs [1]blockdev.Slice
}

var planners = sync.Pool{New: func() any { return new(planner) }}

// plannedMost is how many requests a planner keeps.
const plannedMost = 1024

// newPlanner begins a call. Mu is held until done; look is given back before.
func newPlanner(i *volume.Inode) *planner {
	p := planners.Get().(*planner)
	p.i, p.look = i, look(i, 0, 0)
	return p
}

// done gives the memory back.
func (p *planner) done() {
	for _, r := range p.all[:p.made] {
		*r = planned{}
	}
	if len(p.all) > plannedMost {
		clear(p.all[plannedMost:])
		p.all = p.all[:plannedMost]
	}
	clear(p.reqs)
	p.i, p.look, p.reqs, p.made = nil, nil, p.reqs[:0], 0
	planners.Put(p)
}

// add adds a request of one range of the device.
func (p *planner) add(op blockdev.Op, off blockdev.Bytes, mem blockdev.Slice) {
	if p.made == len(p.all) {
		p.all = append(p.all, new(planned))
	}
	r := p.all[p.made]
	p.made++
	r.Op, r.Off, r.bufs = op, off, [1]blockdev.Slice{mem}
	r.Bufs = r.bufs[:]
	p.reqs = append(p.reqs, &r.Request)
}

// plan makes the requests of one transfer.
func (p *planner) plan(t *Transfer) error {
	i := p.i
	if t.Off < 0 || t.N < 0 || t.At < 0 {
		return volume.ErrInvalid
	}
	if !i.Disk.IsReg() {
		return notRegular(i)
	}
	size := i.ReadEnd()
	if t.Off >= size || t.N == 0 {
		return nil
	}
	n := int(min(int64(t.N), size-t.Off))
	end := t.Off + int64(n)
	t.Done = n
	if i.IsInline() {
		c, err := ReadInline(i)
		if err != nil {
			return err
		}
		b := make([]byte, n)
		if t.Off <= MaxInline {
			c.Read(int(t.Off), b)
		}
		return t.Mem.Put(t.At, b)
	}
	unit := int64(i.FS.Dev.Info().BlockSize)
	a, z := (t.Off+unit-1)/unit*unit, end/unit*unit
	if z <= a || (int64(t.At)+a-t.Off)%dmaAlign != 0 || i.FS.Cache.Overlay() != nil {
		return p.edge(t, t.Off, end)
	}
	if a > t.Off {
		if err := p.edge(t, t.Off, a); err != nil {
			return err
		}
	}
	if err := p.direct(t, a, z); err != nil {
		return err
	}
	if end > z {
		return p.edge(t, z, end)
	}
	return nil
}

// direct covers bytes [a, z) of the file, whole blocks of the device.
func (p *planner) direct(t *Transfer, a, z int64) error {
	f := p.i.FS
	bits, w := f.BlockBits, p.look
	for w.at(f.Logical(a), f.LogicalEnd(z)); w.next(); {
		x := w.x
		from, to := max(int64(x.Lblk)<<bits, a), min(int64(x.End())<<bits, z)
		at, n := t.At+int(from-t.Off), int(to-from)
		if x.Hole() || x.Unwritten {
			t.holes = append(t.holes, span{at, n})
			continue
		}
		p.add(blockdev.OpRead, blockdev.Bytes(x.Pblk)<<bits+blockdev.Bytes(from-int64(x.Lblk)<<bits), t.Mem.Slice(at, n))
	}
	return w.err
}

// edge covers bytes [from, to) of the file, which pass through a buffer.
func (p *planner) edge(t *Transfer, from, to int64) error {
	i, w := p.i, p.look
	bits := i.FS.BlockBits
	l, skip := i.FS.Logical(from), int(from&int64(i.FS.BlockSize-1))
	blocks := i.FS.LogicalEnd(to) - l
	buf, base := t.detour, t.used
	if t.used += int(blocks) << bits; buf == nil {
		var err error
		if buf, err = i.FS.Dev.Alloc(int(blocks)<<bits, blockdev.ForData|blockdev.NoWait); err != nil {
			return err
		}
		base = 0
	}
	t.edges = append(t.edges, edge{buf, base + skip, t.At + int(from-t.Off), int(to - from), t.detour == nil})
	if i.FS.Cache.Overlay() != nil {
		return readBlocks(i, buf, base, l, blocks)
	}
	for w.at(l, l+blocks); w.next(); {
		x := w.x
		s := buf.Slice(base+int(x.Lblk-l)<<bits, int(x.Len)<<bits)
		if x.Hole() || x.Unwritten {
			clear(s.Bytes())
			continue
		}
		p.add(blockdev.OpRead, blockdev.Bytes(x.Pblk)<<bits, s)
	}
	return w.err
}
