package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/blockmap"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
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
	Walk(node func(b jbd2.Block, depth int) error, run func(extent.Extent) error) error
}

// treeIn is the tree whose root is in the inode and whose other nodes come from nodes; with nil, the root alone can be checked.
// mu is held.
func (i *Inode) treeIn(nodes extent.Nodes) Tree {
	if i.d.Flags&disk.FlExtents != 0 {
		return i.extentsIn(nodes)
	}
	return &blockmap.Tree{
		Ino:      i.ino,
		Root:     i.d.Block[:],
		Nodes:    nodes,
		NodeSize: i.fs.bs,
		Blocks:   jbd2.Block(i.fs.sb.BlocksCount),
		Valid:    i.fs.validData(i.ino),
	}
}

// extentsIn is treeIn of an inode that is known to have extents.
func (i *Inode) extentsIn(nodes extent.Nodes) *extent.Tree {
	return &extent.Tree{
		Ino:       i.ino,
		Root:      i.d.Block[:],
		Nodes:     nodes,
		NodeSize:  i.fs.bs,
		Blocks:    jbd2.Block(i.fs.sb.BlocksCount),
		Checksums: i.fs.sb.MetadataCsum(),
		Seed:      disk.InodeSeed(i.fs.seed, i.ino, i.d.Generation),
		Valid:     i.fs.validData(i.ino),
	}
}

// validData is what trees check block numbers with: a file's blocks are not the volume's own metadata. The journal's blocks
// are the journal inode's alone.
func (v *FS) validData(ino uint32) func(jbd2.Block, uint32) bool {
	if v.alloc == nil || ino == disk.InoJournal || ino == disk.InoResize {
		return nil
	}
	return v.alloc.Valid
}

// hasBlocks says whether the inode's i_block maps blocks.
func (i *Inode) hasBlocks() bool {
	if i.inline() || i.fastSymlink() {
		return false
	}
	return i.d.IsReg() || i.d.IsDir() || i.d.IsLink()
}

// fastSymlink says whether the inode is a symbolic link whose target is in i_block: one without blocks of its own. Its
// length does not tell, for links of old were given a block whatever their length.
func (i *Inode) fastSymlink() bool {
	if i.fs.sb.FeatureIncompat.Has(disk.IncompatEAInode) && i.d.IsLink() && !i.inline() {
		// i_blocks counts blocks of attributes as well; such volumes are new enough for the length to tell.
		return i.d.Flags&disk.FlExtents == 0 && i.d.Size < disk.InodeBlockSize
	}
	return i.d.IsLink() && !i.inline() && i.noBlocks()
}

func (i *Inode) inline() bool { return i.d.Flags&disk.FlInlineData != 0 }

// noBlocks says whether the inode has no blocks of its own, not even of metadata.
func (i *Inode) noBlocks() bool {
	sectors := i.fs.sb.Sectors(&i.d)
	if i.d.FileACL != 0 {
		sectors -= min(sectors, uint64(i.fs.bs>>9)<<i.fs.sb.ClusterBits())
	}
	return sectors == 0
}
