// Package partition reads partition tables and gives a partition as a block device. Table is what a disk says of its partitions: a GUID
// Partition Table, or a DOS table with its logical partitions. Open gives one of them as a blockdev.Device: a range of the disk.
//
// Partitions are numbered as Linux does, from 1, by their place in the table, and a DOS table's logical ones from 5. Units are logical blocks of the disk.
// One that leaves the disk, or has blocks that another has, is refused; the others can be used.
//
// Source: UEFI Specification 2.10, §5.2 (the DOS table) and §5.3 (GPT).
package partition

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lanefs/lanefs/blockdev"
)

// Table is the partition table of a disk.
type Table struct {
	Parts   []Part
	Refused []Refused
	// Rest says why there may be logical partitions that are in neither list: reading the chain of an extended one ended too early. nil: there are none.
	Rest error
	// Damage says what is wrong with the first of the two copies of a GPT, of which the second was taken. Empty: nothing.
	Damage string

	extended []int // numbers of extended partitions, which only hold others
}

// Part is a partition.
type Part struct {
	Number int
	First  blockdev.LBA
	Blocks blockdev.Blocks
	ID     string // PARTUUID, in small letters; empty: it has none
	Name   string // PARTLABEL
}

// Refused is a partition that cannot be used.
type Refused struct {
	Part // Blocks is 0 where it ends before it begins
	Why  string
}

// Find gives a partition by its number.
func (t *Table) Find(number int) (Part, error) {
	for _, p := range t.Parts {
		if p.Number == number {
			return p, nil
		}
	}
	for _, p := range t.Refused {
		if p.Number == number {
			return Part{}, fmt.Errorf("partition %d cannot be used: %s", number, p.Why)
		}
	}
	if t.Rest != nil && number >= firstLogical {
		return Part{}, fmt.Errorf("whether there is a partition %d cannot be said: %w", number, t.Rest)
	}
	what := fmt.Sprintf("there is no partition %d", number)
	if slices.Contains(t.extended, number) {
		what = fmt.Sprintf("partition %d is an extended one, which only holds others", number)
	}
	if len(t.Parts) == 0 && len(t.Refused) == 0 && t.Rest == nil {
		return Part{}, fmt.Errorf("%s: the partition table is empty", what)
	}
	if len(t.Parts) == 0 {
		return Part{}, fmt.Errorf("%s, and no other that can be used", what)
	}
	var have []string
	for _, p := range t.Parts {
		have = append(have, strconv.Itoa(p.Number))
	}
	return Part{}, fmt.Errorf("%s; name one of those there are: %s", what, strings.Join(have, ", "))
}

// Read reads the table of a disk. The error says what is damaged, or that there is none.
func Read(d blockdev.Device) (*Table, error) {
	r := &reader{d: d, block: int(d.Info().BlockSize)}
	mbr, err := r.read(0, 1)
	if err != nil {
		return nil, err
	}
	list, ok := dosTable(mbr)
	switch {
	case !ok:
		return nil, errors.New("there is no partition table")
	case protective(list):
		return r.gpt()
	}
	return r.dos(mbr, list)
}

// reader reads blocks of a disk.
type reader struct {
	d     blockdev.Device
	block int
}

// read gives n blocks from lba on.
func (r *reader) read(lba blockdev.LBA, n int) ([]byte, error) {
	b, err := r.d.Alloc(n * r.block)
	if err != nil {
		return nil, err
	}
	defer b.Release()
	if err := r.d.Read(blockdev.Bytes(lba)*blockdev.Bytes(r.block), b.Slice(0, n*r.block)); err != nil {
		return nil, err
	}
	return append([]byte(nil), b.Bytes()[:n*r.block]...), nil
}
