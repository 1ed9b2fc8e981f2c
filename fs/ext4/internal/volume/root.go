package volume

import (
	"github.com/lanefs/lanefs/fs/ext4/blockmap"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
)

// This file says what i_block holds: the root of an extent tree, in files without disk.FlExtents that of a block map as ext2
// and ext3 have it, the content itself, a device number, or nothing.

// Tree is what both kinds of tree can do.
type Tree interface {
	Map(l, max uint32) (extent.Extent, error)
	MapRange(l, end uint32, f func(extent.Extent) error) error
	Insert(x extent.Extent) (uint32, error)
	Remove(from, to uint32, limit int, freed func(extent.Extent) error) (uint32, error)
	CheckRoot() error
	Walk(node func(b disk.Block, depth int) error, run func(extent.Extent) error) error
}

// TreeIn is the tree whose root is in the inode and whose other nodes come from nodes; with nil, the root alone can be checked.
// Mu is held.
func (i *Inode) TreeIn(nodes extent.Nodes) Tree { return i.TreeAt(new(TreeMemory), nodes) }

// TreeAt is TreeIn in m, until the next call or Forget.
func (i *Inode) TreeAt(m *TreeMemory, nodes extent.Nodes) Tree {
	if i.Disk.Flags&disk.FlExtents != 0 {
		return i.extentsAt(m, nodes)
	}
	return &blockmap.Tree{
		Ino:      i.ino,
		Root:     i.Disk.Block[:],
		Nodes:    nodes,
		NodeSize: i.FS.BlockSize,
		Blocks:   disk.Block(i.FS.Super.BlocksCount),
		Valid:    i.FS.validData(i.ino),
	}
}

// ExtentsIn is TreeIn of an inode that is known to have extents.
func (i *Inode) ExtentsIn(nodes extent.Nodes) *extent.Tree {
	return i.extentsAt(new(TreeMemory), nodes)
}

// TreeMemory is memory for a tree, which may be used again.
type TreeMemory struct{ tree extent.Tree }

func (i *Inode) extentsAt(m *TreeMemory, nodes extent.Nodes) *extent.Tree {
	m.tree = extent.Tree{
		Ino:       i.ino,
		Root:      i.Disk.Block[:],
		Nodes:     nodes,
		NodeSize:  i.FS.BlockSize,
		Blocks:    disk.Block(i.FS.Super.BlocksCount),
		Checksums: i.FS.Super.MetadataCsum(),
		Seed:      disk.InodeSeed(i.FS.Seed, i.ino, i.Disk.Generation),
	}
	m.tree.Valid = i.FS.validData(i.ino)
	return &m.tree
}

// Forget lets go of the inode.
func (m *TreeMemory) Forget() { m.tree = extent.Tree{} }

// validData is what trees check block numbers with: a file's blocks are not the volume's own metadata. The journal's blocks
// are the journal inode's alone.
func (v *FS) validData(ino uint32) func(disk.Block, uint32) bool {
	if !v.checksData(ino) {
		return nil
	}
	return v.Alloc.AsValid
}

func (v *FS) checksData(ino uint32) bool {
	return v.Alloc != nil && ino != disk.InoJournal && ino != disk.InoResize
}

// HasBlocks says whether the inode's i_block maps blocks.
func (i *Inode) HasBlocks() bool {
	if i.IsInline() || i.FastSymlink() {
		return false
	}
	return i.Disk.IsReg() || i.Disk.IsDir() || i.Disk.IsLink()
}

// FastSymlink says whether the inode is a symbolic link whose target is in i_block: one without blocks of its own. Its
// length does not tell, for older drivers gave a block to links of any length.
func (i *Inode) FastSymlink() bool {
	if i.FS.Super.FeatureIncompat.Has(disk.IncompatEAInode) && i.Disk.IsLink() && !i.IsInline() {
		// i_blocks counts blocks of attributes as well; such volumes are new enough for the length to tell.
		return i.Disk.Flags&disk.FlExtents == 0 && i.Disk.Size < disk.InodeBlockSize
	}
	return i.Disk.IsLink() && !i.IsInline() && i.NoBlocks()
}

// IsInline says whether the content lies in the inode itself.
func (i *Inode) IsInline() bool { return i.Disk.Flags&disk.FlInlineData != 0 }

// NoBlocks says whether the inode has no blocks of its own, not even of metadata.
func (i *Inode) NoBlocks() bool {
	sectors := i.FS.Super.Sectors(&i.Disk)
	if i.Disk.FileACL != 0 {
		sectors -= min(sectors, uint64(i.FS.BlockSize>>9)<<i.FS.Super.ClusterBits())
	}
	return sectors == 0
}
