package dir

import (
	"encoding/binary"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

var le = binary.LittleEndian

// File types of entries ([layout] Linear Directories).
const (
	FTUnknown = 0
	FTReg     = 1
	FTDir     = 2
	FTChar    = 3
	FTBlock   = 4
	FTFifo    = 5
	FTSocket  = 6
	FTLink    = 7
	ftCsum    = 0xDE // the record that holds a leaf's checksum
)

var (
	ftOfMode = [16]uint8{disk.ModeFifo >> 12: FTFifo, disk.ModeChar >> 12: FTChar, disk.ModeDir >> 12: FTDir,
		disk.ModeBlock >> 12: FTBlock, disk.ModeReg >> 12: FTReg, disk.ModeLink >> 12: FTLink, disk.ModeSocket >> 12: FTSocket}
	dtOfFT = [8]uint8{FTReg: 8, FTDir: 4, FTChar: 2, FTBlock: 6, FTFifo: 1, FTSocket: 12, FTLink: 10}
)

// FTOf is the type of entries for files of a mode.
func FTOf(mode uint16) uint8 { return ftOfMode[mode>>12] }

// DTOf is the DT_ constant of readdir(3) for the type of an entry, DT_UNKNOWN if it is none.
func DTOf(ft uint8) uint8 {
	if int(ft) < len(dtOfFT) {
		return dtOfFT[ft]
	}
	return 0
}

// A record (struct ext4_dir_entry_2) is an inode number, 0 for free space, the record's length, the name's length, the
// type, the name. Records fill a block without gaps, each a multiple of 4 bytes long.
const (
	recHeader  = 8
	recMin     = 12 // with a name of up to four bytes
	csumRecord = 12 // struct ext4_dir_entry_tail
)

// recSize is the length of a record for a name of n bytes.
func recSize(n int) int { return (recHeader + n + 3) &^ 3 }

// getRecLen decodes rec_len, whose two low bits extend it for blocks of 64 KiB and more.
func getRecLen(b []byte, blockSize int) int {
	v := int(le.Uint16(b[4:]))
	if blockSize < 1<<16 {
		return v
	}
	if v == 0xFFFF || v == 0 {
		return blockSize
	}
	return v&^3 | v&3<<16
}

func putRecLen(b []byte, n int) {
	if n == 1<<16 {
		n = 0xFFFF
	}
	le.PutUint16(b[4:], uint16(n))
}

// record is one record's header.
type record struct {
	ino     uint32
	size    int
	nameLen int
}

// rec decodes the record at off of a leaf whose records end at end. why says what is wrong with it, "" if nothing is.
func (d *Dir) rec(data []byte, off, end int) (r record, why string) {
	b := data[off:end]
	if len(b) < recHeader {
		return r, "no room for a record"
	}
	r = record{ino: le.Uint32(b), size: getRecLen(b, d.blockSize), nameLen: int(b[6])}
	switch {
	case r.size < recMin:
		return r, "rec_len is too small"
	case r.size%4 != 0:
		return r, "rec_len is not a multiple of 4"
	case r.size > len(b):
		return r, "rec_len reaches beyond the block"
	case r.size < recSize(r.nameLen):
		return r, "rec_len is too small for the name"
	case r.size != len(b) && r.size > len(b)-recMin:
		return r, "rec_len leaves too little for another record"
	case r.ino > d.inodes:
		return r, "inode number is out of range"
	case r.ino != 0 && r.nameLen == 0:
		return r, "name is empty"
	}
	return r, ""
}

// putRec writes a record of size bytes.
func (d *Dir) putRec(b []byte, size int, name string, ino uint32, ft uint8) {
	le.PutUint32(b, ino)
	putRecLen(b, size)
	b[6] = uint8(len(name))
	b[7] = 0
	if d.filetype {
		b[7] = ft
	}
	copy(b[recHeader:], name)
	clear(b[recHeader+len(name) : recSize(len(name))])
}

// entry is the entry in a live record at off.
func (d *Dir) entry(data []byte, off int, r record) Entry {
	e := Entry{Name: data[off+recHeader : off+recHeader+r.nameLen], Ino: r.ino}
	if d.filetype {
		e.Type = data[off+7]
	}
	return e
}
