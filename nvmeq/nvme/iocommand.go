package nvme

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Range is one range of Dataset Management (NVM §3.2.3).
type Range struct {
	SLBA uint64
	NLB  uint32
}

// Limits of the fields of I/O commands (NVM §3.2).
const (
	MaxNLB    = 1 << 16 // CDW12.NLB has 16 bits and is zero-based
	MaxRanges = 256     // CDW10.NR of Dataset Management has 8 bits, likewise
	RangeSize = 16      // bytes of an entry of a range list
)

// Bits of CDW11 and CDW12 (NVM §3.2).
const (
	CDW12FUA  = 1 << 30 // Read, Write, Write Zeroes: Force Unit Access
	CDW12DEAC = 1 << 25 // Write Zeroes: Deallocate
	CDW11AD   = 1 << 2  // Dataset Management: Attribute – Deallocate
)

// HasLBA says whether an I/O command names blocks by SLBA and NLB.
func (op Opcode) HasLBA() bool {
	switch op {
	case IORead, IOWrite, IOCompare, IOWriteZeroes, IOVerify, IOWriteUncorr:
		return true
	}
	return false
}

// EncodeRanges writes the range list (NVM §3.2.3) to b, RangeSize bytes for each: context attributes, length, first block.
func EncodeRanges(b []byte, ranges []Range) {
	for i, r := range ranges {
		le, at := binary.LittleEndian, b[i*RangeSize:(i+1)*RangeSize]
		le.PutUint32(at[0:], 0)
		le.PutUint32(at[4:], r.NLB)
		le.PutUint64(at[8:], r.SLBA)
	}
}

// Describe names a command as errors do: "Write of 8 blocks at LBA 4096 of namespace 1".
func Describe(op Opcode, admin bool, nsid uint32, lba uint64, blocks uint32) string {
	var b strings.Builder
	b.WriteString(op.Name(admin))
	if !admin && op.HasLBA() {
		plural := "s"
		if blocks == 1 {
			plural = ""
		}
		fmt.Fprintf(&b, " of %d block%s at LBA %d", blocks, plural, lba)
	}
	if nsid != 0 && nsid != 0xffffffff {
		fmt.Fprintf(&b, " of namespace %d", nsid)
	}
	return b.String()
}
