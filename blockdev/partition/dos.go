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
	for i, e := range list {
		if e.boot&0x7f != 0 {
			return nil, fmt.Errorf("there is no partition table: entry %d begins with %#02x", i+1, e.boot)
		}
	}
	d := &dosReader{reader: r, disk: binary.LittleEndian.Uint32(b[440:]), next: firstLogical}
	var all, parts, extended spans
	for i, e := range list {
		if !e.used() {
			continue
		}
		s := d.span(i+1, uint64(e.first), uint64(e.n))
		s.within(1, uint64(r.d.Info().Blocks)-1)
		if all = append(all, s); e.extended() {
			extended = append(extended, s)
			d.t.extended = append(d.t.extended, i+1)
		} else {
			parts = append(parts, s)
		}
	}
	all.overlaps()
	parts.put(&d.t)
	for _, ext := range extended {
		var err error
		if ext.why != "" {
			err = errors.New(ext.why)
		} else {
			err = d.chain(ext)
		}
		if err != nil {
			d.t.Rest = fmt.Errorf("the extended partition %d: %w", ext.number, err)
			break // what is behind it has other numbers if there are more in it
		}
	}
	if len(d.t.Parts) == 0 && len(d.t.Refused) == 0 && d.t.Rest == nil {
		return nil, errors.New("the partition table is empty")
	}
	return &d.t, nil
}

// dosReader is a DOS table under way.
type dosReader struct {
	*reader
	t    Table
	disk uint32 // identifier
	next int    // number of the next logical partition
}

func (d *dosReader) span(number int, first, n uint64) *span {
	s := &span{number: number, first: first, last: first + n - 1}
	if d.disk != 0 {
		s.id = fmt.Sprintf("%08x-%02x", d.disk, number)
	}
	return s
}

// chain reads the tables of an extended partition. In each, a logical partition's place is counted from that table, and the next table's from the first.
// Programs left what they liked in the third and fourth entry: as in Linux, a partition that leaves what the table is for is none there. The error says why the chain
// ended too early: the partitions before are there all the same.
func (d *dosReader) chain(ext *span) error {
	var taken spans // its partitions, and the tables
	defer func() {
		taken.overlaps()
		taken.put(&d.t)
	}()
	for at, own, tables := ext.first, ext.last-ext.first+1, 0; ; tables++ {
		if tables == maxTables {
			return fmt.Errorf("it has more than %d tables", maxTables)
		}
		table := &span{first: at, last: at}
		taken = append(taken, table)
		if table.within(ext.first, ext.last); table.why != "" {
			return errors.New(table.why)
		}
		for _, s := range taken[:len(taken)-1] {
			if s.why == "" && s.meets(table) { // a partition's data is no table
				return errors.New(both(s, table))
			}
		}
		b, err := d.read(blockdev.LBA(at), 1)
		if err != nil {
			return err
		}
		list, ok := dosTable(b)
		switch {
		case !ok && tables == 0: // nobody has made a logical one yet
			return nil
		case !ok:
			return fmt.Errorf("its chain leads to block %d, where there is no table", at)
		}
		next, size := uint64(0), uint64(0)
		for i, e := range list {
			end := uint64(e.first) + uint64(e.n)
			switch {
			case !e.used():
			case i > 1 && !e.extended() && (end > own || at+end > ext.last+1):
			case e.extended() && next != 0:
				return fmt.Errorf("the table in block %d leads to two others", at)
			case e.extended():
				next, size = ext.first+uint64(e.first), uint64(e.n)
			default:
				s := d.span(d.next, at+uint64(e.first), uint64(e.n))
				s.within(ext.first, ext.last)
				taken = append(taken, s)
				d.next++
			}
		}
		if next == 0 {
			return nil
		}
		at, own = next, size
	}
}
