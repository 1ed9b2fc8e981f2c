package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/blockmap"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

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

// allocBlocks takes up to want blocks near goal and counts them in i_blocks.
func (i *Inode) allocBlocks(o *op, goal jbd2.Block, want uint32) (jbd2.Block, uint32, error) {
	b, n, err := i.fs.alloc.Alloc(o.h, goal, want, 1, o.allocFlags())
	if err != nil {
		return 0, 0, err
	}
	return i.countBlocks(b, n)
}

// growBlocks is allocBlocks for a file that grows at its end: once it has blocks, some more are kept for it, so that
// files which are written at the same time, a little to each, do not share out the volume in small pieces.
func (i *Inode) growBlocks(o *op, goal jbd2.Block, want uint32) (jbd2.Block, uint32, error) {
	if i.noBlocks() {
		return i.allocBlocks(o, goal, want) // it may be all there is
	}
	b, n, err := i.fs.alloc.AllocWindow(o.h, &i.window, goal, want, 1, o.allocFlags())
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
	group, _, _ := i.fs.sb.InodeLocation(i.Ino())
	return jbd2.Block(i.fs.sb.GroupFirstBlock(group))
}

// appendMeta adds a block of metadata at the end of what i_block maps, logical block l.
func (i *Inode) appendMeta(o *op, l uint32) (*jbd2.Buffer, error) {
	if x, err := i.tree(nil).Map(l, 1); err != nil || !x.Hole() {
		if err == nil {
			err = disk.Corrupt(inodeName(i.Ino()), "block %d lies past the end and is mapped to %d", l, x.Pblk)
		}
		return nil, err
	}
	b, n, err := i.allocBlocks(o, i.blockGoal(l), 1)
	if err != nil {
		return nil, err
	}
	if _, err := i.tree(o).Insert(extent.Extent{Lblk: l, Len: n, Pblk: b}); err != nil {
		return nil, err
	}
	return o.newBlock(b)
}
