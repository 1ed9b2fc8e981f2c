package diff

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The data profile has few files, and they are not large, so that operations meet the same ranges.
const (
	dataFiles   = 5
	dataMaxSize = 3 << 20
)

// dataGen makes Ops of the data profile. It estimates which slots are open and how large the files are, so that most Ops do
// something. The estimate may be wrong.
type dataGen struct {
	*gen
	choices
	direct bool
	file   [Slots]int // the file of a slot, -1: closed
	flags  [Slots]int
	size   [dataFiles]int64
	queued []Op
}

func newDataGen(g *gen, direct bool) *dataGen {
	d := &dataGen{gen: g, direct: direct}
	for i := range d.file {
		d.file[i] = -1
	}
	d.choices = newChoices([]choice{
		{6, d.open}, {2, d.close}, {10, d.pread}, {4, d.read}, {14, d.pwrite}, {3, d.pwritev}, {6, d.write}, {5, d.mmapRead},
		{6, d.mmapWrite}, {4, d.lseek}, {3, d.seekMap}, {6, d.ftruncate}, {1, d.truncate}, {14, d.fallocate}, {5, d.copyRange},
		{2, d.sendfile}, {3, d.fsync}, {5, d.drop}, {1, d.unlink}, {1, d.sync},
	})
	return d
}

func fileName(i int) string { return fmt.Sprintf("f%d", i) }

func (d *dataGen) next() Op {
	for {
		if len(d.queued) > 0 {
			o := d.queued[0]
			d.queued = d.queued[1:]
			return o
		}
		o := d.choices.next(d.gen)
		if d.direct && (o.Kind == OpSendfile || o.Flags&unix.O_DIRECT != 0 && o.Kind == OpOpen) {
			continue
		}
		o.Late = !d.direct && d.one(25)
		return o
	}
}

// slotOpen is a slot that is probably open.
func (d *dataGen) slotOpen() int {
	for range 20 {
		if s := d.slot(); d.file[s] >= 0 {
			return s
		}
	}
	return d.slot()
}

func (d *dataGen) sizeOf(slot int) int64 {
	if f := d.file[slot]; f >= 0 {
		return d.size[f]
	}
	return 0
}

func (d *dataGen) grow(slot int, end int64) {
	if f := d.file[slot]; f >= 0 {
		d.size[f] = max(d.size[f], end)
	}
}

// span is a range of a file: anywhere, at its end, around a block's edge, or of whole blocks.
func (d *dataGen) span(slot int, most int64) (off, n int64) {
	size := d.sizeOf(slot)
	n = 1 + d.upTo(pick(d.gen, 16, 600, 5000, 70_000, most)-1)
	switch d.rng.IntN(6) {
	case 0:
		off = size
	case 1:
		off = max(0, size-d.upTo(n))
	case 2:
		off = max(0, d.upTo(size+1)&^4095+pick[int64](d.gen, -1, 0, 1))
	case 3:
		off, n = d.upTo(size)&^4095, (n+4095)&^4095
	case 4:
		off = d.upTo(dataMaxSize)
	default:
		off = d.upTo(size)
	}
	if d.flags[slot]&unix.O_DIRECT != 0 {
		off, n = off&^4095, (n+4095)&^4095
	}
	return off, min(n, max(4096, dataMaxSize-off))
}

func (d *dataGen) open() Op {
	s, f := d.slot(), d.rng.IntN(dataFiles)
	flags := pick(d.gen, unix.O_RDWR, unix.O_RDWR, unix.O_RDWR, unix.O_RDONLY, unix.O_WRONLY)
	for _, x := range []struct{ one, flag int }{{2, unix.O_CREAT}, {30, unix.O_TRUNC}, {8, unix.O_APPEND}, {8, unix.O_DIRECT}, {20, unix.O_SYNC}, {20, unix.O_DSYNC}} {
		if d.one(x.one) {
			flags |= x.flag
		}
	}
	if flags&unix.O_APPEND != 0 {
		flags &^= unix.O_DIRECT // the end of a file need not be the end of a sector
	}
	if d.size[f] == 0 {
		flags |= unix.O_CREAT
	}
	if flags&unix.O_TRUNC != 0 {
		d.size[f] = 0
	}
	d.file[s], d.flags[s] = f, flags
	return Op{Kind: OpOpen, FD: s, Path: fileName(f), Flags: flags, Mode: 0o644}
}

func (d *dataGen) close() Op {
	s := d.slot()
	d.file[s] = -1
	return Op{Kind: OpClose, FD: s}
}

func (d *dataGen) pread() Op {
	s := d.slotOpen()
	off, n := d.span(s, 1500_000)
	return Op{Kind: OpPread, FD: s, Off: off, Len: n}
}

func (d *dataGen) read() Op {
	s := d.slotOpen()
	if d.flags[s]&unix.O_DIRECT != 0 {
		return d.pread()
	}
	_, n := d.span(s, 300_000)
	return Op{Kind: OpRead, FD: s, Len: n}
}

func (d *dataGen) pwrite() Op {
	s := d.slotOpen()
	off, n := d.span(s, 300_000)
	if d.one(30) {
		n = (1 << 20) + d.upTo(800_000)&^4095
	}
	d.grow(s, off+n)
	return Op{Kind: OpPwrite, FD: s, Off: off, Len: n, Seed: d.seed()}
}

func (d *dataGen) pwritev() Op {
	o := d.pwrite()
	if d.flags[o.FD]&unix.O_DIRECT == 0 {
		o.Kind = OpPwritev
	}
	return o
}

func (d *dataGen) write() Op {
	s := d.slotOpen()
	if d.flags[s]&unix.O_DIRECT != 0 {
		return d.pwrite()
	}
	_, n := d.span(s, 100_000)
	if d.sizeOf(s) > dataMaxSize {
		return d.ftruncate()
	}
	d.grow(s, d.sizeOf(s)+n)
	return Op{Kind: OpWrite, FD: s, Len: n, Seed: d.seed()}
}

func (d *dataGen) mmapRead() Op {
	s := d.slotOpen()
	off, n := d.span(s, 300_000)
	return Op{Kind: OpMmapRead, FD: s, Off: off, Len: n}
}

func (d *dataGen) mmapWrite() Op {
	s := d.slotOpen()
	off, n := d.span(s, 100_000)
	return Op{Kind: OpMmapWrite, FD: s, Off: off, Len: n, Seed: d.seed(), Flags: d.rng.IntN(2)}
}

func (d *dataGen) lseek() Op {
	s := d.slotOpen()
	size := d.sizeOf(s)
	o := Op{Kind: OpLseek, FD: s, Flags: d.rng.IntN(3)}
	switch o.Flags {
	case unix.SEEK_SET:
		o.Off = d.upTo(size + 100)
	case unix.SEEK_CUR:
		o.Off = d.upTo(5000)
	case unix.SEEK_END:
		o.Off = -d.upTo(size / 2)
	}
	if d.flags[s]&unix.O_DIRECT != 0 {
		o.Flags, o.Off = unix.SEEK_SET, d.upTo(size)&^4095
	}
	return o
}

func (d *dataGen) seekMap() Op {
	return Op{Kind: OpSeekMap, FD: d.slotOpen(), Off: d.upTo(pick[int64](d.gen, 0, 100_000))}
}

func (d *dataGen) newSize(old int64) int64 {
	switch d.rng.IntN(6) {
	case 0:
		return 0
	case 1:
		return min(dataMaxSize, old+d.upTo(300_000))
	case 2:
		return d.upTo(dataMaxSize) &^ 4095
	case 3:
		return max(0, old-d.upTo(5000))
	}
	return d.upTo(old)
}

func (d *dataGen) ftruncate() Op {
	s := d.slotOpen()
	n := d.newSize(d.sizeOf(s))
	if f := d.file[s]; f >= 0 {
		d.size[f] = n
	}
	return Op{Kind: OpFtruncate, FD: s, Len: n}
}

func (d *dataGen) truncate() Op {
	f := d.rng.IntN(dataFiles)
	d.size[f] = d.newSize(d.size[f])
	return Op{Kind: OpTruncate, Path: fileName(f), Len: d.size[f]}
}

func (d *dataGen) fsync() Op { return Op{Kind: pick(d.gen, OpFsync, OpFdatasync), FD: d.slotOpen()} }
func (d *dataGen) drop() Op  { return Op{Kind: OpDrop, FD: d.slotOpen()} }
func (d *dataGen) sync() Op  { return Op{Kind: OpSync} }

// unlink removes the name of an open file; a new file takes the name.
func (d *dataGen) unlink() Op {
	f := d.rng.IntN(dataFiles)
	d.size[f] = 0
	return Op{Kind: OpUnlink, Path: fileName(f)}
}
