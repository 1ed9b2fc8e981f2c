package diff

import (
	"golang.org/x/sys/unix"
)

const (
	keepSize = unix.FALLOC_FL_KEEP_SIZE
	punch    = unix.FALLOC_FL_PUNCH_HOLE
	collapse = unix.FALLOC_FL_COLLAPSE_RANGE
	zero     = unix.FALLOC_FL_ZERO_RANGE
	insert   = unix.FALLOC_FL_INSERT_RANGE
)

func (d *dataGen) fallocate() Op {
	s := d.slotOpen()
	off, n := d.span(s, 300_000)
	modes := []int{0, keepSize, punch | keepSize, punch | keepSize, zero, zero | keepSize}
	o := Op{Kind: OpFallocate, FD: s, Off: off, Len: n, Flags: pick(d.gen, modes...)}
	switch o.Flags {
	case 0, zero:
		d.grow(s, off+n)
	}
	if d.one(60) {
		o.Flags = pick(d.gen, punch, punch, zero|punch, 0x4000) // all invalid
	}
	return o
}

func (d *dataGen) copyRange() Op {
	from, to := d.slotOpen(), d.slotOpen()
	if (d.flags[from]|d.flags[to])&unix.O_DIRECT != 0 {
		return d.pread() // as above
	}
	off, n := d.span(from, 500_000)
	off2, _ := d.span(to, 300_000)
	d.grow(to, min(off2+n, off2+max(0, d.sizeOf(from)-off)))
	return Op{Kind: OpCopyRange, FD: from, FD2: to, Off: off, Off2: off2, Len: n}
}

func (d *dataGen) sendfile() Op {
	from, to := d.slotOpen(), d.slotOpen()
	if d.sizeOf(to) > dataMaxSize || d.file[from] == d.file[to] || (d.flags[from]|d.flags[to])&unix.O_DIRECT != 0 {
		return d.pread()
	}
	off, n := d.span(from, 200_000)
	return Op{Kind: OpSendfile, FD: from, FD2: to, Off: off, Len: n}
}
