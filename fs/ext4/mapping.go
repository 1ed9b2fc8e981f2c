package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// This file joins an inode to the tree that says where its blocks are.

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

func (n treeNodes) Alloc(goal jbd2.Block) (extent.Node, error) {
	buf, err := n.i.allocMeta(n.h, goal)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (n treeNodes) Free(b jbd2.Block) error { return n.i.freeMeta(n.h, b) }

func (n treeNodes) Dirty(node extent.Node) error {
	n.h.Dirty(node.(*jbd2.Buffer))
	return nil
}

func (n treeNodes) RootDirty() error {
	n.i.changed = true
	return nil
}

// allocMeta allocates one block for metadata of the inode, zeroed and counted in i_blocks.
func (i *Inode) allocMeta(h *jbd2.Handle, goal jbd2.Block) (*jbd2.Buffer, error) {
	b, _, err := i.allocBlocks(h, goal, 1)
	if err != nil {
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

// tree is the inode's extent tree; h is nil for reading. mu is held: for reading when h is nil, else for writing.
func (i *Inode) tree(h *jbd2.Handle) *extent.Tree {
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
	if i.d.Flags&disk.FlExtents == 0 {
		return fmt.Errorf("inode %d: block-mapped files: %w", i.ino, ErrNotSup)
	}
	return i.tree(nil).MapRange(from, to, f)
}

// allocBlocks takes up to want blocks near goal and counts them in i_blocks.
func (i *Inode) allocBlocks(h *jbd2.Handle, goal jbd2.Block, want uint32) (jbd2.Block, uint32, error) {
	b, n, err := i.fs.alloc.Alloc(h, goal, want, 1, 0)
	if err != nil {
		return 0, 0, err
	}
	if !i.addBlocks(int64(n)) {
		return 0, 0, ErrTooBig
	}
	return b, n, nil
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
		if x, ok, err := i.tree(h).Last(); err == nil && ok && x.Lblk < l {
			return x.Pblk + jbd2.Block(l-x.Lblk)
		}
	}
	return i.inodeGoal()
}

// inodeGoal is the first block of the inode's group.
func (i *Inode) inodeGoal() jbd2.Block {
	group, _, _ := i.fs.sb.InodeLocation(i.ino)
	return jbd2.Block(i.fs.sb.GroupFirstBlock(group))
}
