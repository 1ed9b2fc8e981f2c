// Package disk holds the on-disk structures of ext4: what their bytes mean and how their checksums are computed. It
// performs no I/O and keeps no state.
//
// The nouns are the format's own. A Superblock describes the volume; it also knows its geometry: where groups begin, which
// carry backups, which inode lives where. A GroupDesc describes one block group. An Inode is decoded from, and encoded
// into, a slot of an inode table; bytes of the slot that no field covers stay as they are. An ExtentHeader, Extent and
// ExtentIndex make up extent trees. A Block is a block's number. Members have the names that the format gives
// them, without prefix and with high and low halves joined.
//
// Units: block numbers are of file-system blocks, groups and inodes are counted from 0 and 1, times are Timestamps. All
// integers on disk are little-endian.
//
// Decoding returns a CorruptError for bytes that cannot be right; a wrong checksum is one. Checksums are seeded: CsumSeed is the
// volume's seed, InodeSeed derives that of what belongs to an inode.
//
// Source: Linux, Documentation/filesystems/ext4/ [layout], chapter names in the comments.
package disk

import (
	"encoding/binary"
	"fmt"
)

var le = binary.LittleEndian

// Block is the number of a block of the volume, counted from its start. What is said of blocks elsewhere in this package in
// uint64 is as the format has it.
type Block uint64

// CorruptError says that bytes on disk cannot be what they should be.
type CorruptError struct {
	What string // the structure: "superblock", "inode 12", "group descriptor 3"
	Why  string
}

func (e *CorruptError) Error() string { return e.What + ": " + e.Why }

// Corrupt makes a CorruptError.
func Corrupt(what, format string, args ...any) error {
	return &CorruptError{What: what, Why: fmt.Sprintf(format, args...)}
}

// Inode numbers with a fixed meaning ([layout] Special inodes).
const (
	InoBad       = 1
	InoRoot      = 2
	InoUsrQuota  = 3
	InoGrpQuota  = 4
	InoBoot      = 5
	InoUndelete  = 6
	InoResize    = 7
	InoJournal   = 8
	InoExclude   = 9
	InoReplica   = 10
	FirstInoRev0 = 11
)
