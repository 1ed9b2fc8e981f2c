// Package dir holds the algorithms of ext4 directories: finding, adding, removing and listing names, in plain
// directories and in hash-indexed ones. It performs no I/O: a Store lends it the directory's blocks.
//
// The nouns: a Dir is how one directory is laid out; it has no state and may be used by several goroutines. A Store is
// the directory's blocks, by number from 0. A leaf is a block of entries; in a plain directory all blocks are leaves.
// In a hash-indexed one block 0 is the index's root and further index nodes lead to leaves, each of which holds the
// names whose hashes lie between two bounds. An Entry is one name.
//
// The caller holds the directory's lock: shared for Lookup, Read and Empty, exclusive for the rest, which also need
// a transaction; it is the Store that knows it. When a change fails half-way, the Store puts back what changed.
//
// Nothing on disk is trusted: what cannot be is a *disk.CorruptError that names block and offset, and no directory,
// however crafted, makes a call run longer than its number of blocks allows.
//
// Source: Linux, Documentation/filesystems/ext4/, Directory Entries [layout].
package dir

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Errors that callers tell apart.
var (
	ErrNotExist = errors.New("no such name in the directory")
	ErrExist    = errors.New("name exists in the directory")
	ErrFull     = errors.New("the directory's index is full")
)

// MaxName is the longest name in bytes.
const MaxName = 255

// What one Add can need at most: blocks appended and blocks made dirty, the appended ones included.
const (
	MaxAppends = 5
	MaxDirty   = 12
)

// Block is a directory block in memory, referenced until Put. *jbd2.Buffer is one.
type Block interface {
	Data() []byte
	// Block is which one of the volume's it is.
	Block() disk.Block
	// Verified says whether SetVerified was called since the block was read: its checksum was found right, or it was
	// changed here.
	Verified() bool
	SetVerified()
	Put()
}

// Store is a directory's blocks.
type Store interface {
	// Blocks is the directory's length.
	Blocks() uint32
	// Get reads a block below Blocks. A hole is an error.
	Get(lblk uint32) (Block, error)
	// Append adds a zeroed block at the end and lengthens the directory.
	Append() (lblk uint32, b Block, err error)
	// Change is called before the contents of a block that Get returned change, so that they can be put back.
	Change(b Block)
	// Dirty is called after the contents of a block have changed, while it is still referenced.
	Dirty(b Block)
	// Indexed says whether the inode has disk.FlIndex; SetIndexed sets it, under the same transaction.
	Indexed() bool
	SetIndexed()
	// Damaged is called when Lookup or Read finds the index damaged and does without it: nothing is to be changed then.
	Damaged(err error)
}

// Entry is one name. Name is part of the block and valid as long as the function that gave it says.
type Entry struct {
	Name []byte
	Ino  uint32
	Type uint8 // an FT constant, FTUnknown where the volume does not record it
}

// Dir is how a directory is laid out. It does not change, but for what it keeps of one whose index is damaged.
type Dir struct {
	ino       uint32
	seed      uint32 // of checksums
	blockSize int
	inodes    uint32 // the largest inode number
	filetype  bool
	csum      bool
	index     bool // directories get an index when they outgrow a block
	maxLevels int  // index nodes below the root on a path
	hash      Hash // for directories that have no index yet
	listed    atomic.Pointer[listing]
}

// New describes the directory ino of a volume.
func New(s *disk.Superblock, ino uint32, n *disk.Inode) (*Dir, error) {
	what := fmt.Sprintf("directory %d", ino)
	switch {
	case !n.IsDir():
		return nil, disk.Corrupt(what, "inode has mode %#o", n.Mode)
	case n.Flags&disk.FlInlineData != 0:
		return nil, fmt.Errorf("%s: its entries are inside the inode", what)
	case n.Flags&(disk.FlEncrypt|disk.FlCasefold) != 0:
		return nil, disk.Corrupt(what, "inode has flags %#x, of encrypted or case-insensitive directories, and the volume has none", n.Flags)
	}
	return describe(s, ino, n.Generation), nil
}

func describe(s *disk.Superblock, ino, generation uint32) *Dir {
	d := &Dir{
		ino:       ino,
		seed:      disk.InodeSeed(s.CsumSeed(), ino, generation),
		blockSize: s.BlockSize(),
		inodes:    s.InodesCount,
		filetype:  s.FeatureIncompat.Has(disk.IncompatFiletype),
		csum:      s.MetadataCsum(),
		index:     s.FeatureCompat.Has(disk.CompatDirIndex),
		maxLevels: 1,
		hash:      Hash{Version: s.DefHashVersion, Unsigned: s.UnsignedHash(), Seed: s.HashSeed},
	}
	if s.FeatureIncompat.Has(disk.IncompatLargeDir) {
		d.maxLevels = 2
	}
	if d.hash.Version > HashTEA {
		d.hash.Version = HashHalfMD4
	}
	return d
}

// corrupt is the error for what cannot be at an offset of a block.
func (d *Dir) corrupt(lblk uint32, off int, format string, args ...any) error {
	return disk.Corrupt(fmt.Sprintf("directory %d, block %d, offset %d", d.ino, lblk, off), format, args...)
}
