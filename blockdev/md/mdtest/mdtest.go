// Package mdtest writes md metadata for tests where neither the kernel's md nor mdadm is at hand. An Array is what all members say of it;
// Write makes a file one of them. What mdadm and the kernel write is in testdata of package md.
package mdtest

import (
	"encoding/binary"
	"io"
)

// Array is what all members say.
type Array struct {
	Set      byte // its UUID is made of
	Minor    int
	Level    int32
	Chunk    uint32 // sectors
	Features uint32
	Layout   uint32
	Disks    int
	Data     uint64 // sector at which data begin; 0: the first possible
}

// Change alters a superblock before its checksum is made.
type Change func(super []byte)

// Write makes a file or device of size bytes member number role of an array.
func (a Array) Write(w io.WriterAt, size int64, role int, changes ...Change) error {
	le := binary.LittleEndian
	const roles = 8
	b := make([]byte, 256+2*roles)
	at, data := int64(0), a.Data
	end := uint64(size / 512)
	switch a.Minor {
	case 0:
		at = (size/512 - 16) &^ 7 * 512
		end = uint64(at / 512)
	case 1:
		data = max(data, 8)
	case 2:
		at, data = 4096, max(data, 16)
	}
	le.PutUint32(b, 0xa92b4efc)
	le.PutUint32(b[4:], 1)
	le.PutUint32(b[8:], a.Features)
	for i := range 16 {
		b[0x10+i] = a.Set
	}
	copy(b[0x20:0x40], "lab:test")
	le.PutUint64(b[0x40:], 1)
	le.PutUint32(b[0x48:], uint32(a.Level))
	le.PutUint32(b[0x4c:], a.Layout)
	le.PutUint32(b[0x58:], a.Chunk)
	le.PutUint32(b[0x5c:], uint32(a.Disks))
	le.PutUint64(b[0x80:], data)
	le.PutUint64(b[0x88:], end-data)
	le.PutUint64(b[0x90:], uint64(at/512))
	le.PutUint32(b[0xa0:], uint32(role))
	le.PutUint64(b[0xc8:], 7)
	le.PutUint32(b[0xdc:], roles)
	for i := range roles {
		r := uint16(0xffff)
		if i < a.Disks {
			r = uint16(i)
		}
		le.PutUint16(b[256+2*i:], r)
	}
	for _, f := range changes {
		f(b)
	}
	var sum uint64
	le.PutUint32(b[0xd8:], 0)
	for i := 0; i < len(b); i += 4 {
		sum += uint64(le.Uint32(b[i:]))
	}
	le.PutUint32(b[0xd8:], uint32(sum)+uint32(sum>>32))
	_, err := w.WriteAt(b, at)
	return err
}
