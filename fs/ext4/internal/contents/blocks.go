package contents

import (
	"github.com/lanefs/lanefs/fs/ext4/blockmap"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// AllocMeta allocates one block for metadata of the inode, zeroed and counted in i_blocks.
func AllocMeta(i *volume.Inode, o *volume.Op, goal disk.Block, flags int) (*jbd2.Buffer, error) {
	b, n, err := i.FS.Alloc.Alloc(o.Handle, goal, 1, 1, flags)
	if err != nil {
		return nil, err
	}
	if b, _, err = countBlocks(i, b, n); err != nil {
		return nil, err
	}
	return newBlock(o, b)
}

// newBlock is block b, which the operation allocated for metadata, filled with zeroes.
func newBlock(o *volume.Op, b disk.Block) (*jbd2.Buffer, error) {
	buf, err := o.FS.Cache.New(b)
	if err != nil {
		return nil, err
	}
	o.Handle.Created(buf)
	return buf, nil
}

// FreeMeta frees a block that AllocMeta or AppendMeta took.
func FreeMeta(i *volume.Inode, o *volume.Op, b disk.Block) error {
	o.Handle.Forget(b)
	return freeBlocks(i, o, b, 1)
}

// AllocBlocks takes up to want blocks near goal and counts them in i_blocks.
func AllocBlocks(i *volume.Inode, o *volume.Op, goal disk.Block, want uint32) (disk.Block, uint32, error) {
	b, n, err := i.FS.Alloc.Alloc(o.Handle, goal, want, 1, o.AllocFlags())
	if err != nil {
		return 0, 0, err
	}
	return countBlocks(i, b, n)
}

// growBlocks is AllocBlocks for a file that grows at its end: once it has blocks, some more are kept for it, so that
// files which are written at the same time, a little to each, do not share out the volume in small pieces.
func growBlocks(i *volume.Inode, o *volume.Op, goal disk.Block, want uint32) (disk.Block, uint32, error) {
	if i.NoBlocks() {
		return AllocBlocks(i, o, goal, want) // it may be all there is
	}
	b, n, err := i.FS.Alloc.AllocWindow(o.Handle, &i.Window, goal, want, 1, o.AllocFlags())
	if err != nil {
		return 0, 0, err
	}
	return countBlocks(i, b, n)
}

// countBlocks counts n blocks from b, which were just taken, in i_blocks.
func countBlocks(i *volume.Inode, b disk.Block, n uint32) (disk.Block, uint32, error) {
	switch {
	case i.Disk.Flags&disk.FlExtents == 0 && b+disk.Block(n) > blockmap.MaxPblk:
		return 0, 0, volume.ErrNoSpace // what is free lies where the map's pointers do not reach
	case !AddBlocks(i, int64(n)):
		return 0, 0, volume.ErrTooBig
	}
	return b, n, nil
}

func freeBlocks(i *volume.Inode, o *volume.Op, b disk.Block, n uint32) error {
	if err := i.FS.Alloc.Free(o.Handle, b, n); err != nil {
		return err
	}
	AddBlocks(i, -int64(n))
	return nil
}

// AddBlocks counts n blocks more, or fewer, in i_blocks. It reports false when the volume cannot say so much.
func AddBlocks(i *volume.Inode, n int64) bool {
	i.Changed = true
	s := int64(i.FS.Super.Sectors(&i.Disk)) + n<<(i.FS.BlockBits-9)
	return i.FS.Super.SetSectors(&i.Disk, uint64(max(s, 0)))
}

// BlockGoal is where logical block l should lie: after the extent before it, else near the inode.
func BlockGoal(i *volume.Inode, l uint32) disk.Block {
	if l > 0 {
		if x, err := At(i, l-1); err == nil && !x.Hole() {
			return x.Pblk + 1
		}
		if i.Disk.Flags&disk.FlExtents != 0 {
			if x, ok, err := Extents(i, nil).Last(); err == nil && ok && x.Lblk < l {
				return x.Pblk + disk.Block(l-x.Lblk)
			}
		}
	}
	return InodeGoal(i)
}

// InodeGoal is the first block of the inode's group.
func InodeGoal(i *volume.Inode) disk.Block {
	group, _, _ := i.FS.Super.InodeLocation(i.Ino())
	return disk.Block(i.FS.Super.GroupFirstBlock(group))
}

// AppendMeta adds a block of metadata at the end of what i_block maps, logical block l.
func AppendMeta(i *volume.Inode, o *volume.Op, l uint32) (*jbd2.Buffer, error) {
	if x, err := At(i, l); err != nil || !x.Hole() {
		if err == nil {
			err = disk.Corrupt(volume.InodeName(i.Ino()), "block %d lies past the end and is mapped to %d", l, x.Pblk)
		}
		return nil, err
	}
	b, n, err := AllocBlocks(i, o, BlockGoal(i, l), 1)
	if err != nil {
		return nil, err
	}
	if _, err := Tree(i, o).Insert(extent.Extent{Lblk: l, Len: n, Pblk: b}); err != nil {
		return nil, err
	}
	return newBlock(o, b)
}
