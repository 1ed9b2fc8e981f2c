package powercut

import (
	"encoding/binary"
	"fmt"
)

// stamp identifies bytes. Every 16 bytes of data carry it and their offset in the file, so that bytes in a wrong place show
// where they are from.
type stamp struct {
	worker uint8 // garbage: free space before the workload
	file   uint32
	op     uint32
}

const (
	unit    = 16
	garbage = 0xff
	magic0  = 'L'
	magic1  = 'f'
)

// fill writes the stamp over b, which lies at off of the file.
func fill(b []byte, s stamp, off int64) {
	var u [unit]byte
	u[0], u[1], u[2], u[3] = magic0, magic1, s.worker, ^s.worker
	binary.LittleEndian.PutUint32(u[4:], s.file)
	binary.LittleEndian.PutUint32(u[8:], s.op)
	for done := 0; done < len(b); {
		at := off + int64(done)
		binary.LittleEndian.PutUint32(u[12:], uint32(at/unit))
		done += copy(b[done:], u[at%unit:])
	}
}

// identify describes the bytes at off of a file.
func identify(b []byte, off int64) string {
	zero := true
	for _, x := range b {
		zero = zero && x == 0
	}
	if zero {
		return "zeroes"
	}
	skip := int((unit - off%unit) % unit)
	for ; skip+unit <= len(b); skip += unit {
		u := b[skip : skip+unit]
		if u[0] != magic0 || u[1] != magic1 || u[2] != ^u[3] {
			continue
		}
		file, op, at := binary.LittleEndian.Uint32(u[4:]), binary.LittleEndian.Uint32(u[8:]), int64(binary.LittleEndian.Uint32(u[12:]))*unit
		if u[2] == garbage {
			return fmt.Sprintf("what lay in free space before the workload (block %d)", file)
		}
		return fmt.Sprintf("bytes of worker %d, file %d, operation %d, offset %d (found at %d)", u[2], file, op, at, off+int64(skip))
	}
	return fmt.Sprintf("bytes that no worker wrote (%x...)", b[:min(len(b), unit)])
}
