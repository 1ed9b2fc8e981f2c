package ext4

import (
	"errors"

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

// treeNodes is extent.Nodes for one inode under one handle, nil for reading.
type treeNodes struct {
	i *Inode
	h *jbd2.Handle
}

func (n treeNodes) Get(b jbd2.Block) (extent.Node, error) {
	buf, err := n.i.fs.cache.Get(b)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

// Alloc takes reserved blocks, too: to punch a hole into a file, or to write what was preallocated, can need a node, and
// must not fail on a full volume.
func (n treeNodes) Alloc(goal jbd2.Block) (extent.Node, error) {
	buf, err := n.i.allocMeta(n.h, goal, alloc.UseReserved)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (n treeNodes) Free(b jbd2.Block) error { return n.i.freeMeta(n.h, b) }

func (n treeNodes) Dirty(node extent.Node) error {
	n.h.Dirty(node.(*jbd2.Buffer))
	n.i.noteTID(n.h.TID()) // an fsync waits for it, though the inode itself may be the same as before
	return nil
}

func (n treeNodes) RootDirty() error {
	n.i.changed = true
	return nil
}

// allocMeta allocates one block for metadata of the inode, zeroed and counted in i_blocks.
func (i *Inode) allocMeta(h *jbd2.Handle, goal jbd2.Block, flags int) (*jbd2.Buffer, error) {
	b, n, err := i.fs.alloc.Alloc(h, goal, 1, 1, flags)
	if err != nil {
		return nil, err
	}
	if b, _, err = i.countBlocks(h, b, n); err != nil {
		return nil, err
	}
	buf, err := i.fs.cache.New(b)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (i *Inode) freeMeta(h *jbd2.Handle, b jbd2.Block) error {
	h.Forget(b)
	return i.freeBlocks(h, b, 1)
}

// tree is the inode's tree; h is nil for reading. mu is held: for reading when h is nil, else for writing.
func (i *Inode) tree(h *jbd2.Handle) tree {
	if i.d.Flags&disk.FlExtents != 0 {
		return i.extents(h)
	}
	return &blockmap.Tree{
		Ino:      i.ino,
		Root:     i.d.Block[:],
		Nodes:    treeNodes{i, h},
		NodeSize: i.fs.bs,
		Blocks:   jbd2.Block(i.fs.sb.BlocksCount),
		Valid:    i.fs.validData(i.ino),
	}
}

// extents is tree of an inode that is known to have extents.
func (i *Inode) extents(h *jbd2.Handle) *extent.Tree {
	return &extent.Tree{
		Ino:       i.ino,
		Root:      i.d.Block[:],
		Nodes:     treeNodes{i, h},
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
	return i.tree(nil).MapRange(from, to, f)
}

// allocBlocks takes up to want blocks near goal and counts them in i_blocks.
func (i *Inode) allocBlocks(h *jbd2.Handle, goal jbd2.Block, want uint32) (jbd2.Block, uint32, error) {
	b, n, err := i.fs.alloc.Alloc(h, goal, want, 1, i.allocFlags())
	if err != nil {
		return 0, 0, err
	}
	return i.countBlocks(h, b, n)
}

// countBlocks counts n blocks from b, which were just taken, in i_blocks, or gives them back.
func (i *Inode) countBlocks(h *jbd2.Handle, b jbd2.Block, n uint32) (jbd2.Block, uint32, error) {
	var err error
	switch {
	case i.d.Flags&disk.FlExtents == 0 && b+jbd2.Block(n) > blockmap.MaxPblk:
		err = ErrNoSpace // what is free lies where the map's pointers do not reach
	case !i.addBlocks(int64(n)):
		err = ErrTooBig
	default:
		return b, n, nil
	}
	return 0, 0, errors.Join(err, i.fs.alloc.Free(h, b, n))
}

func (i *Inode) freeBlocks(h *jbd2.Handle, b jbd2.Block, n uint32) error {
	if err := i.fs.alloc.Free(h, b, n); err != nil {
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
func (i *Inode) blockGoal(h *jbd2.Handle, l uint32) jbd2.Block {
	if l > 0 {
		if x, err := i.tree(h).Map(l-1, 1); err == nil && !x.Hole() {
			return x.Pblk + 1
		}
		if i.d.Flags&disk.FlExtents != 0 {
			if x, ok, err := i.extents(h).Last(); err == nil && ok && x.Lblk < l {
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
