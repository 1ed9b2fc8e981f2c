package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/blockmap"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// This file joins an inode to the tree that says where its blocks are: an extent tree, or in files without
// disk.FlExtents a block map as ext2 and ext3 have it.

// tree is what both kinds can do.
type tree interface {
	Map(l, max uint32) (extent.Extent, error)
	MapRange(l, end uint32, f func(extent.Extent) error) error
	Insert(x extent.Extent) (uint32, error)
	Remove(from, to uint32, limit int, freed func(extent.Extent) error) (uint32, error)
	CheckRoot() error
	Walk(node func(b jbd2.Block, depth int) error, run func(extent.Extent) error) error
}

// treeNodes is extent.Nodes for one inode in one operation, nil for reading.
type treeNodes struct {
	i *Inode
	o *op
}

func (n treeNodes) Get(b jbd2.Block) (extent.Node, error) {
	buf, err := n.i.fs.cache.Get(b)
	if err != nil {
		return nil, err
	}
	if n.o != nil {
		n.o.h.Save(buf)
	}
	return buf, nil
}

// Alloc takes reserved blocks, too: to punch a hole into a file, or to write what was preallocated, can need a node, and
// must not fail on a full volume.
func (n treeNodes) Alloc(goal jbd2.Block) (extent.Node, error) {
	buf, err := n.i.allocMeta(n.o, goal, alloc.UseReserved)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (n treeNodes) Free(b jbd2.Block) error { return n.i.freeMeta(n.o, b) }

func (n treeNodes) Dirty(node extent.Node) error {
	n.o.h.Dirty(node.(*jbd2.Buffer))
	n.i.noteTID(n.o.h.TID()) // an fsync waits for it, though the inode itself may be the same as before
	return nil
}

func (n treeNodes) RootDirty() error {
	n.i.changed = true
	return nil
}

// allocMeta allocates one block for metadata of the inode, zeroed and counted in i_blocks.
func (i *Inode) allocMeta(o *op, goal jbd2.Block, flags int) (*jbd2.Buffer, error) {
	b, n, err := i.fs.alloc.Alloc(o.h, goal, 1, 1, flags)
	if err != nil {
		return nil, err
	}
	if b, _, err = i.countBlocks(b, n); err != nil {
		return nil, err
	}
	return o.newBlock(b)
}

// newBlock is block b, which the operation allocated for metadata, filled with zeroes.
func (o *op) newBlock(b jbd2.Block) (*jbd2.Buffer, error) {
	buf, err := o.fs.cache.New(b)
	if err != nil {
		return nil, err
	}
	o.h.Created(buf)
	return buf, nil
}

func (i *Inode) freeMeta(o *op, b jbd2.Block) error {
	o.h.Forget(b)
	return i.freeBlocks(o, b, 1)
}

// tree is the inode's tree; o is nil for reading. mu is held: for reading when o is nil, else for writing.
func (i *Inode) tree(o *op) tree {
	if i.d.Flags&disk.FlExtents != 0 {
		return i.extents(o)
	}
	return &blockmap.Tree{
		Ino:      i.ino,
		Root:     i.d.Block[:],
		Nodes:    treeNodes{i, o},
		NodeSize: i.fs.bs,
		Blocks:   jbd2.Block(i.fs.sb.BlocksCount),
		Valid:    i.fs.validData(i.ino),
	}
}

// extents is tree of an inode that is known to have extents.
func (i *Inode) extents(o *op) *extent.Tree {
	return &extent.Tree{
		Ino:       i.ino,
		Root:      i.d.Block[:],
		Nodes:     treeNodes{i, o},
		NodeSize:  i.fs.bs,
		Blocks:    jbd2.Block(i.fs.sb.BlocksCount),
		Checksums: i.fs.sb.MetadataCsum(),
		Seed:      i.seed(),
		Valid:     i.fs.validData(i.ino),
	}
}

// formatTree gives a new inode an empty tree, of extents where the volume has them.
func (i *Inode) formatTree() {
	if i.fs.sb.FeatureIncompat.Has(disk.IncompatExtents) {
		i.d.Flags |= disk.FlExtents
		extent.Format(i.d.Block[:])
		return
	}
	i.d.Flags &^= disk.FlExtents
	blockmap.Format(i.d.Block[:])
}

// longestRun is how many blocks one Insert may map without touching more metadata than creditsPerExtent says: the
// pointers of a block map lie in a node for every few hundred.
func (i *Inode) longestRun(unwritten bool) uint32 {
	switch {
	case i.d.Flags&disk.FlExtents == 0:
		return uint32(i.fs.bs / 4)
	case unwritten:
		return extent.MaxUnwritten
	}
	return extent.MaxWritten
}

// seed is the checksum seed of what belongs to the inode.
func (i *Inode) seed() uint32 { return disk.InodeSeed(i.fs.seed, i.ino, i.d.Generation) }

// validData is what extent trees check block numbers with: a file's blocks are not the volume's own metadata. The
// journal's blocks are the journal inode's alone.
func (v *FS) validData(ino uint32) func(jbd2.Block, uint32) bool {
	if v.alloc == nil || ino == disk.InoJournal || ino == disk.InoResize {
		return nil
	}
	return v.alloc.Valid
}

// mapRange calls f for extents and holes of logical blocks [from, to). mu is held.
func (i *Inode) mapRange(from, to uint32, f func(extent.Extent) error) error {
	if from > to || to > extent.MaxBlock {
		return fmt.Errorf("inode %d: %w", i.ino, extent.ErrRange)
	}
	return i.tree(nil).MapRange(from, to, f)
}

// allocBlocks takes up to want blocks near goal and counts them in i_blocks.
func (i *Inode) allocBlocks(o *op, goal jbd2.Block, want uint32) (jbd2.Block, uint32, error) {
	b, n, err := i.fs.alloc.Alloc(o.h, goal, want, 1, o.allocFlags())
	if err != nil {
		return 0, 0, err
	}
	return i.countBlocks(b, n)
}

// countBlocks counts n blocks from b, which were just taken, in i_blocks.
func (i *Inode) countBlocks(b jbd2.Block, n uint32) (jbd2.Block, uint32, error) {
	switch {
	case i.d.Flags&disk.FlExtents == 0 && b+jbd2.Block(n) > blockmap.MaxPblk:
		return 0, 0, ErrNoSpace // what is free lies where the map's pointers do not reach
	case !i.addBlocks(int64(n)):
		return 0, 0, ErrTooBig
	}
	return b, n, nil
}

func (i *Inode) freeBlocks(o *op, b jbd2.Block, n uint32) error {
	if err := i.fs.alloc.Free(o.h, b, n); err != nil {
		return err
	}
	i.addBlocks(-int64(n))
	return nil
}

// addBlocks counts n blocks more, or fewer, in i_blocks. It reports false when the volume cannot say so much.
func (i *Inode) addBlocks(n int64) bool {
	i.changed = true
	s := int64(i.fs.sb.Sectors(&i.d)) + n<<(i.fs.bits-9)
	return i.fs.sb.SetSectors(&i.d, uint64(max(s, 0)))
}

// blockGoal is where logical block l should lie: after the extent before it, else near the inode.
func (i *Inode) blockGoal(l uint32) jbd2.Block {
	if l > 0 {
		if x, err := i.tree(nil).Map(l-1, 1); err == nil && !x.Hole() {
			return x.Pblk + 1
		}
		if i.d.Flags&disk.FlExtents != 0 {
			if x, ok, err := i.extents(nil).Last(); err == nil && ok && x.Lblk < l {
				return x.Pblk + jbd2.Block(l-x.Lblk)
			}
		}
	}
	return i.inodeGoal()
}

// inodeGoal is the first block of the inode's group.
func (i *Inode) inodeGoal() jbd2.Block {
	group, _, _ := i.fs.sb.InodeLocation(i.ino)
	return jbd2.Block(i.fs.sb.GroupFirstBlock(group))
}
