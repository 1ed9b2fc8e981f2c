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

// tree is the inode's tree; o is nil for reading. mu is held: for reading when o is nil, else for writing.
func (i *Inode) tree(o *op) Tree { return i.treeIn(treeNodes{i, o}) }

// extents is tree of an inode that is known to have extents.
func (i *Inode) extents(o *op) *extent.Tree { return i.extentsIn(treeNodes{i, o}) }

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

// mapRange calls f for extents and holes of logical blocks [from, to). mu is held.
func (i *Inode) mapRange(from, to uint32, f func(extent.Extent) error) error {
	if from > to || to > extent.MaxBlock {
		return fmt.Errorf("inode %d: %w", i.Ino(), extent.ErrRange)
	}
	return i.tree(nil).MapRange(from, to, f)
}
