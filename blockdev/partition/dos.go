package partition

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/lanefs/lanefs/blockdev"
)

// A DOS table has four entries in the first block of the disk (UEFI 2.10 §5.2.1). One of them may be an extended partition, which holds others, the
// logical partitions: its first block is a table, too, of which one entry is a logical partition and another leads to the next such table. Linux
// numbers logical partitions from 5 on, in the order of that chain.

// Types of DOS partitions.
const (
	dosGPT       = 0xee // the whole disk belongs to a GPT
	dosExtended  = 0x05
	dosExtended2 = 0x0f // by LBA
	dosExtended3 = 0x85 // Linux's
)

const (
	dosEntries   = 4
	firstLogical = 5
	maxTables    = 256 // in a chain; Linux shows fewer partitions of a disk
)

// dosEntry is one of a table. Places and sizes are in blocks of the disk.
type dosEntry struct {
	boot, kind byte
	first, n   uint32
}

func (e dosEntry) used() bool { return e.kind != 0 && e.n > 0 }

func (e dosEntry) extended() bool {
	return e.kind == dosExtended || e.kind == dosExtended2 || e.kind == dosExtended3
}

// SignatureEnd is where the signature of a boot record, and of a DOS partition table, ends in its block, in bytes.
const SignatureEnd = 512

// HasSignature says whether a block, of SignatureEnd bytes at least, has the signature of a boot record: that of a disk with a GPT has it, too.
func HasSignature(b []byte) bool { return b[SignatureEnd-2] == 0x55 && b[SignatureEnd-1] == 0xaa }

// dosTable decodes the entries of a table; false: the block has none.
func dosTable(b []byte) (list [dosEntries]dosEntry, ok bool) {
	le := binary.LittleEndian
	if !HasSignature(b) {
		return list, false
	}
	for i := range list {
		e := b[446+16*i:][:16]
		list[i] = dosEntry{boot: e[0], kind: e[4], first: le.Uint32(e[8:]), n: le.Uint32(e[12:])}
	}
	return list, true
}

// protective says that the disk has a GPT: one entry has its type. Others beside it, as in a hybrid table, are for machines that know no GPT.
func protective(list [dosEntries]dosEntry) bool {
	return slices.ContainsFunc(list[:], func(e dosEntry) bool { return e.kind == dosGPT })
}

// dos reads the table whose first block is b, and the chains of its extended partitions.
func (r *reader) dos(b []byte, list [dosEntries]dosEntry) (*Table, error) {
	d := &dosReader{reader: r, disk: binary.LittleEndian.Uint32(b[440:]), next: firstLogical, blocks: uint64(r.d.Info().Blocks)}
	for i, e := range list {
		if e.boot&0x7f != 0 {
			return nil, fmt.Errorf("there is no partition table: entry %d begins with %#02x", i+1, e.boot)
		}
	}
	for i, e := range list {
		if !e.used() {
			continue
		}
		if err := d.add(dosRange{what: fmt.Sprintf("partition %d", i+1), first: uint64(e.first), n: uint64(e.n)}, 1, d.blocks); err != nil {
			return nil, err
		}
		if e.extended() {
			d.t.extended = append(d.t.extended, i+1)
		} else {
			d.part(i+1, uint64(e.first), uint64(e.n))
		}
	}
	for _, number := range d.t.extended {
		if err := d.chain(number, list[number-1]); err != nil {
			return nil, err
		}
	}
	if len(d.t.Parts) == 0 {
		return nil, errors.New("the partition table is empty")
	}
	return &d.t, nil
}

// dosReader is a DOS table under way.
type dosReader struct {
	*reader
	t      Table
	disk   uint32 // identifier
	next   int    // number of the next logical partition
	blocks uint64
	taken  []dosRange // of the table in hand: partitions, and the tables of an extended one
}

// dosRange is blocks that a partition or a table has.
type dosRange struct {
	what     string
	first, n uint64
}

// add takes a range, which must lie in [low, high) and have no block in common with what is there.
func (d *dosReader) add(x dosRange, low, high uint64) error {
	if x.first < low || x.first+x.n > high {
		return fmt.Errorf("%s has %d blocks from %d on, and may have those from %d to %d", x.what, x.n, x.first, low, high-1)
	}
	for _, y := range d.taken {
		if x.first < y.first+y.n && y.first < x.first+x.n {
			return fmt.Errorf("%s and %s overlap", y.what, x.what)
		}
	}
	d.taken = append(d.taken, x)
	return nil
}

func (d *dosReader) part(number int, first, n uint64) {
	p := Part{Number: number, First: blockdev.LBA(first), Blocks: blockdev.Blocks(n)}
	if d.disk != 0 {
		p.ID = fmt.Sprintf("%08x-%02x", d.disk, number)
	}
	d.t.Parts = append(d.t.Parts, p)
}

// chain reads the tables of an extended partition. In each, a logical partition's place is counted from that table, and the next table's from the first.
// Programs left what they liked in the third and fourth entry: as in Linux, a partition that leaves what the table is for is none there.
func (d *dosReader) chain(number int, ext dosEntry) error {
	d.taken = nil
	first := uint64(ext.first)
	low, high := first, first+uint64(ext.n)
	for at, own, tables := first, uint64(ext.n), 0; ; tables++ {
		if tables == maxTables {
			return fmt.Errorf("the extended partition %d has more than %d tables", number, maxTables)
		}
		if err := d.add(dosRange{what: fmt.Sprintf("the table in block %d", at), first: at, n: 1}, low, high); err != nil {
			return fmt.Errorf("the extended partition %d: %w", number, err)
		}
		b, err := d.read(blockdev.LBA(at), 1)
		if err != nil {
			return fmt.Errorf("the extended partition %d: %w", number, err)
		}
		list, ok := dosTable(b)
		switch {
		case !ok && tables == 0: // nobody has made a logical one yet
			return nil
		case !ok:
			return fmt.Errorf("the extended partition %d: its chain leads to block %d, where there is no table", number, at)
		}
		next, size := uint64(0), uint64(0)
		for i, e := range list {
			end := uint64(e.first) + uint64(e.n)
			switch {
			case !e.used():
			case i > 1 && !e.extended() && (end > own || at+end > high):
			case e.extended() && next != 0:
				return fmt.Errorf("the extended partition %d: the table in block %d leads to two others", number, at)
			case e.extended():
				next, size = first+uint64(e.first), uint64(e.n)
			default:
				x := dosRange{what: fmt.Sprintf("partition %d", d.next), first: at + uint64(e.first), n: uint64(e.n)}
				if err := d.add(x, low, high); err != nil {
					return fmt.Errorf("the extended partition %d: %w", number, err)
				}
				d.part(d.next, x.first, x.n)
				d.next++
			}
		}
		if next == 0 {
			return nil
		}
		at, own = next, size
	}
}
