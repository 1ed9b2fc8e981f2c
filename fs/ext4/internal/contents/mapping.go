package contents

import (
	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/blockmap"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// This file joins an inode to the tree that says where its blocks are: an extent tree, or in files without
// disk.FlExtents a block map as ext2 and ext3 have it.

// treeNodes is extent.Nodes for one inode in one operation, nil for reading. See heldNodes, too.
type treeNodes struct {
	i *volume.Inode
	o *volume.Op
}

func (n treeNodes) Get(b disk.Block) (extent.Node, error) {
	buf, err := n.i.ReadOwn(b)
	if err != nil {
		return nil, err
	}
	if n.o != nil {
		n.o.Handle.Save(buf)
	}
	return buf, nil
}

// Alloc takes what is kept for nodes: to punch a hole into a file, or to write what was preallocated, can need one, and
// must not fail on a full volume.
func (n treeNodes) Alloc(goal disk.Block) (extent.Node, error) {
	buf, err := AllocMeta(n.i, n.o, goal, alloc.UseNodes)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (n treeNodes) Free(b disk.Block) error { return FreeMeta(n.i, n.o, b) }

func (n treeNodes) Dirty(node extent.Node) error {
	n.o.Handle.Dirty(node.(*jbd2.Buffer))
	n.i.NoteTID(n.o.Handle.TID()) // an fsync waits for it, though the inode itself may be the same as before
	return nil
}

func (n treeNodes) RootDirty() error {
	n.i.Changed = true
	return nil
}

// Tree is the inode's tree; o is nil for reading. Mu is held: for reading when o is nil, else for writing.
func Tree(i *volume.Inode, o *volume.Op) volume.Tree { return i.TreeIn(treeNodes{i, o}) }

// At is where logical block l lies, or the hole there. Mu is held.
func At(i *volume.Inode, l uint32) (extent.Extent, error) {
	w := look(i, l, l+1)
	defer w.done()
	w.next()
	return w.x, w.err
}

// Extents is tree of an inode that is known to have extents.
func Extents(i *volume.Inode, o *volume.Op) *extent.Tree { return i.ExtentsIn(treeNodes{i, o}) }

// FormatTree gives a new inode an empty tree, of extents where the volume has them.
func FormatTree(i *volume.Inode) {
	if i.FS.Super.FeatureIncompat.Has(disk.IncompatExtents) {
		i.Disk.Flags |= disk.FlExtents
		extent.Format(i.Disk.Block[:])
		return
	}
	i.Disk.Flags &^= disk.FlExtents
	blockmap.Format(i.Disk.Block[:])
}

// longestRun is how many blocks one Insert may map without touching more metadata than CreditsPerExtent says: the
// pointers of a block map lie in a node for every few hundred.
func longestRun(i *volume.Inode, unwritten bool) uint32 {
	switch {
	case i.Disk.Flags&disk.FlExtents == 0:
		return uint32(i.FS.BlockSize / 4)
	case unwritten:
		return extent.MaxUnwritten
	}
	return extent.MaxWritten
}

// MapRange calls f for extents and holes of logical blocks [from, to). Mu is held.
func MapRange(i *volume.Inode, from, to uint32, f func(extent.Extent) error) error {
	w := look(i, from, to)
	defer w.done()
	for w.next() {
		if err := f(w.x); err != nil {
			return err
		}
	}
	return w.err
}
