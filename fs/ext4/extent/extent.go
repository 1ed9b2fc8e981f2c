// Package extent keeps the extent tree of one inode: which logical blocks of a file lie at which blocks of the volume.
// It is pure: it works on bytes, and gets, makes and frees the tree's blocks through Nodes.
//
// The nouns: an Extent is a run of logical blocks (uint32, counted from the start of the file) that lies in one run of
// volume blocks (disk.Block). An unwritten extent has blocks that read as zeroes. A hole is what no extent covers. The
// root of the Tree is the inode's i_block, 60 bytes; every other node is one block of the volume. A node is a header
// and a sorted array of 12-byte entries: extents in a leaf, pointers to nodes one level nearer the leaves elsewhere. The
// key of a pointer is the first logical block below it, exactly; every change keeps it so.
//
// A Tree is a value made for one operation or for several; it holds no state but the bytes. The caller holds
// the inode's lock: shared for Map, Walk and Check, exclusive for the rest. Nothing that was read from the volume is
// believed: depth, counts, order, bounds and checksums are checked before use, and what fails is a *disk.CorruptError.
//
// A change that finds no free blocks leaves the tree as it was, or with less of the change than was asked for, never
// in between: new nodes are allocated before anything is touched.
//
// The layout is [layout]: Linux Documentation/filesystems/ext4/ifork.rst, "Extent Tree".
package extent

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

const (
	// RootSize is the size of i_block, bytes: a header and four entries.
	RootSize = disk.InodeBlockSize
	// MaxDepth is the greatest depth of a root: five levels of nodes below it.
	MaxDepth = disk.MaxExtentDepth
	// MaxBlock is the first logical block number that a file cannot have.
	MaxBlock = 0xffffffff
	// MaxWritten and MaxUnwritten are the lengths that one extent can have.
	MaxWritten   = disk.MaxExtentLen
	MaxUnwritten = disk.MaxUnwrittenLen
)

// ErrMapped is returned by Insert when a block of the range is mapped already.
var ErrMapped = errors.New("extent: logical block is mapped already")

// ErrRange is returned for logical blocks that no file can have.
var ErrRange = errors.New("extent: logical block out of range")

// Extent is a run of logical blocks. As an answer of Map it may be a hole.
type Extent struct {
	Lblk      uint32
	Len       uint32
	Pblk      disk.Block // 0 for a hole
	Unwritten bool
}

// Hole says whether nothing is mapped.
func (e Extent) Hole() bool { return e.Pblk == 0 }

// End is the first logical block after the extent.
func (e Extent) End() uint32 { return e.Lblk + e.Len }

func (e Extent) limit() uint32 { return maxLen(e.Unwritten) }

func maxLen(unwritten bool) uint32 {
	if unwritten {
		return MaxUnwritten
	}
	return MaxWritten
}

// Part is what of e lies from logical block l on, at most max blocks. e contains l; it may be a hole.
func (e Extent) Part(l, max uint32) Extent {
	if e.Hole() {
		e.Lblk, e.Len = l, e.End()-l
	} else {
		e = e.from(l)
	}
	e.Len = min(e.Len, max)
	return e
}

// from is what is left of e from logical block l, which lies in it.
func (e Extent) from(l uint32) Extent {
	d := l - e.Lblk
	return Extent{l, e.Len - d, e.Pblk + disk.Block(d), e.Unwritten}
}

// upTo is what of e lies before logical block l, which lies in it or at its end.
func (e Extent) upTo(l uint32) Extent {
	e.Len = l - e.Lblk
	return e
}

// joins says whether b continues e: in the file, on the volume, and in state.
func (e Extent) joins(b Extent) bool {
	return e.Unwritten == b.Unwritten && uint64(e.Lblk)+uint64(e.Len) == uint64(b.Lblk) &&
		e.Pblk+disk.Block(e.Len) == b.Pblk
}

// Node is a block of the tree in memory. *jbd2.Buffer is one.
type Node interface {
	Block() disk.Block
	Data() []byte
	Put()
	// Verified says whether the contents were checked since they were read.
	Verified() bool
	SetVerified()
}

// Nodes gives a Tree its blocks, under the caller's transaction. Each Node that Get and Alloc return is Put once.
type Nodes interface {
	Get(b disk.Block) (Node, error)
	// Alloc makes a new node of zeroes, near goal where that is possible.
	Alloc(goal disk.Block) (Node, error)
	// Free gives the block of a node back to the volume.
	Free(b disk.Block) error
	// Dirty is called after the contents of a node changed, its checksum set.
	Dirty(n Node) error
	// RootDirty is called after Tree.Root changed.
	RootDirty() error
}

// Tree is the extent tree of one inode.
type Tree struct {
	Ino       uint32
	Root      []byte // i_block, RootSize bytes, changed in place
	Nodes     Nodes
	NodeSize  int        // of a node: the block size
	Blocks    disk.Block // of the volume: extents and nodes lie below
	Checksums bool       // metadata_csum: nodes have a tail
	Seed      uint32     // of the checksums: crc32c of the volume's seed, inode number and generation
	// Valid says whether n blocks from b may belong to a file; nil means that Blocks is the only bound.
	Valid func(b disk.Block, n uint32) bool
}

// Format makes root that of an empty tree.
func Format(root []byte) {
	clear(root[:RootSize])
	node(root[:RootSize]).format(0)
}

func (t *Tree) corrupt(b disk.Block, format string, args ...any) error {
	return disk.Corrupt(t.name(b), format, args...)
}

func (t *Tree) name(b disk.Block) string {
	if b == 0 {
		return fmt.Sprintf("inode %d, extent tree's root", t.Ino)
	}
	return fmt.Sprintf("inode %d, extent node in block %d", t.Ino, b)
}

// validRange says whether n blocks from b may be used by the file.
func (t *Tree) validRange(b disk.Block, n uint32) bool {
	if b == 0 || b >= t.Blocks || disk.Block(n) > t.Blocks-b {
		return false
	}
	return t.Valid == nil || t.Valid(b, n)
}
