package partition

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/blockdev"
)

// Types of DOS partitions.
const (
	dosGPT       = 0xee // the whole disk belongs to a GPT
	dosExtended  = 0x05
	dosExtended2 = 0x0f
	dosExtended3 = 0x85
)

// parseDOS reads the first block of a disk; protective says that it has a GPT (UEFI 2.10 §5.2).
func parseDOS(b []byte, blocks blockdev.Blocks) (t *Table, protective bool, err error) {
	le := binary.LittleEndian
	if b[510] != 0x55 || b[511] != 0xaa {
		return nil, false, errors.New("there is no partition table")
	}
	t = &Table{}
	for i := range 4 {
		e := b[446+16*i:][:16]
		first, n := le.Uint32(e[8:]), le.Uint32(e[12:])
		switch e[4] {
		case 0:
			continue
		case dosGPT:
			return nil, true, nil
		case dosExtended, dosExtended2, dosExtended3:
			return nil, false, fmt.Errorf("partition %d is an extended one, which LaneFS does not read", i+1)
		}
		if e[0]&0x7f != 0 {
			return nil, false, fmt.Errorf("there is no partition table: entry %d begins with %#02x", i+1, e[0])
		}
		if first == 0 || n == 0 || uint64(first)+uint64(n) > uint64(blocks) {
			return nil, false, fmt.Errorf("partition %d has %d blocks from %d on, of a disk of %d", i+1, n, first, blocks)
		}
		p := Part{Number: i + 1, First: blockdev.LBA(first), Blocks: blockdev.Blocks(n)}
		if disk := le.Uint32(b[440:]); disk != 0 {
			p.ID = fmt.Sprintf("%08x-%02x", disk, i+1)
		}
		t.Parts = append(t.Parts, p)
	}
	if len(t.Parts) == 0 {
		return nil, false, errors.New("the partition table is empty")
	}
	return t, false, nil
}
