package alloc

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Groups that were never used ([layout] "Lazy Block Group Initialization"): with BLOCK_UNINIT or INODE_UNINIT the bitmap
// on the volume means nothing, and what it would be follows from the geometry. The flag goes when the group is first used.

// initBlockBitmapLocked makes the block bitmap of a group whose only blocks in use are the volume's own.
func (a *Allocator) initBlockBitmapLocked(g *group) (*jbd2.Buffer, error) {
	buf, err := a.cache.New(disk.Block(g.desc.BlockBitmap))
	if err != nil {
		return nil, err
	}
	buf.Lock()
	defer buf.Unlock()
	bitmap := buf.Data()
	first := a.first(g)
	a.meta.within(first, first+disk.Block(g.blocks), func(z zone) {
		setBits(bitmap, uint32(z.start-first), uint32(z.end-first))
	})
	setBits(bitmap, g.blocks, uint32(len(bitmap))*8)
	// The count follows from the geometry as well; whatever the descriptor says yields to it.
	if n := countClear(bitmap, g.blocks); n != g.desc.FreeBlocksCount {
		d := int64(n) - int64(g.desc.FreeBlocksCount)
		g.desc.FreeBlocksCount = n
		a.free.Add(d)
		a.avail.Add(d)
		g.availLocked()
	}
	a.learnLocked(g, bitmap)
	return buf, nil
}

// initInodeBitmapLocked makes the inode bitmap of a group without inodes in use.
func (a *Allocator) initInodeBitmapLocked(g *group) (*jbd2.Buffer, error) {
	if g.desc.FreeInodesCount != a.sb.InodesPerGroup {
		return nil, disk.Corrupt(g.name(), "%d inodes of %d are free in a group never used", g.desc.FreeInodesCount, a.sb.InodesPerGroup)
	}
	buf, err := a.cache.New(disk.Block(g.desc.InodeBitmap))
	if err != nil {
		return nil, err
	}
	buf.Lock()
	setBits(buf.Data(), a.sb.InodesPerGroup, uint32(len(buf.Data()))*8)
	buf.Unlock()
	return buf, nil
}

// useBlocksLocked ends BLOCK_UNINIT: from now on the bitmap, which buf holds, counts. The caller stores the descriptor.
func (a *Allocator) useBlocksLocked(h *jbd2.Handle, g *group, buf *jbd2.Buffer) {
	g.desc.Flags &^= disk.BGBlockUninit
	g.desc.BlockBitmapCsum = a.sb.BlockBitmapCsum(buf.Data())
	h.DirtyShared(buf)
}

// usedInodes is how many slots of the group's inode table were ever used: those that follow are not in use, and hold
// anything unless INODE_ZEROED is set.
func (a *Allocator) usedInodes(g *group) uint32 {
	if !a.sb.HasGroupCsum() {
		return a.sb.InodesPerGroup // without uninit_bg nothing is counted, and mke2fs wrote every table
	}
	return a.sb.InodesPerGroup - g.desc.ItableUnused
}

// useInodeLocked prepares the slot of inode i (from 0) of the group: slots up to it that were never written become
// zeroes. The caller stores the descriptor.
func (a *Allocator) useInodeLocked(h *jbd2.Handle, g *group, i uint32) error {
	per := a.sb.InodesPerBlock()
	used := a.usedInodes(g)
	if i < used {
		return nil
	}
	if g.desc.Flags&disk.BGInodeZeroed == 0 {
		// The block in which the used part ends was written whole.
		for b := (used + per - 1) / per; b <= i/per; b++ {
			buf, err := a.cache.New(disk.Block(g.desc.InodeTable) + disk.Block(b))
			if err != nil {
				return err
			}
			buf.Lock()
			h.DirtyShared(buf) // zeroes of unused slots may stay
			buf.Unlock()
			buf.Put()
		}
	}
	g.desc.ItableUnused = a.sb.InodesPerGroup - i - 1
	return nil
}
