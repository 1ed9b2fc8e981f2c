package alloc

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// group is one block group.
type group struct {
	n      uint32 // its number
	blocks uint32 // bits of its block bitmap that stand for blocks

	mu   sync.Mutex
	desc disk.GroupDesc // protected by mu; the positions of bitmaps and table never change
	// busy is the block bitmap with the blocks still set that are free there but cannot be given out: pending, or held by
	// a window or a discard. nil while there are none. Protected by mu.
	busy    []byte
	held    uint32    // protected by mu: how many blocks differ
	pending []pending // protected by mu: freed, not durable
	low     uint32    // protected by mu: no block below is clear
	lowIno  uint32    // protected by mu: no inode below is clear

	// Written under mu, read without it when a group is looked for.
	known      atomic.Bool   // the block bitmap was looked at: longest means something
	avail      atomic.Uint32 // blocks that can be given out
	longest    atomic.Uint32 // no run of them is longer
	freeInodes atomic.Uint32
	dirs       atomic.Uint32

	noBlocks, noInodes atomic.Pointer[unusable] // the bitmap of either kind could not be used; nil: it could
}

func (g *group) name() string { return fmt.Sprintf("group %d", g.n) }

// first is the first block of the group.
func (a *Allocator) first(g *group) disk.Block { return disk.Block(a.sb.GroupFirstBlock(g.n)) }

// availLocked brings avail up to date.
func (g *group) availLocked() { g.avail.Store(g.desc.FreeBlocksCount - g.held) }

// groupOf is the group of a block of the volume, and the block's bit there.
func (a *Allocator) groupOf(b disk.Block) (*group, uint32) {
	n, off := a.sb.GroupOfBlock(uint64(b))
	return &a.groups[n], off
}

// storeDescLocked writes the descriptor to its block.
func (a *Allocator) storeDescLocked(h *jbd2.Handle, g *group) {
	block, off := a.sb.DescLocation(g.n)
	buf := a.descs[block]
	buf.Lock()
	a.sb.EncodeGroup(g.n, &g.desc, buf.Data()[off:])
	h.DirtyShared(buf)
	buf.Unlock()
}

// blockBitmapLocked gets the group's block bitmap, checked. The caller puts it.
func (a *Allocator) blockBitmapLocked(g *group) (*jbd2.Buffer, error) {
	if g.desc.Flags&disk.BGBlockUninit != 0 && a.sb.HasGroupCsum() {
		return a.initBlockBitmapLocked(g)
	}
	buf, err := a.cache.Get(disk.Block(g.desc.BlockBitmap))
	if err != nil {
		return nil, err
	}
	if !buf.Verified() {
		buf.Lock()
		err = a.checkBlockBitmapLocked(g, buf.Data())
		buf.Unlock()
		if err != nil {
			buf.Put()
			return nil, err
		}
		buf.SetVerified()
	}
	a.learnLocked(g, buf.Data())
	return buf, nil
}

// learnLocked finds out once what the bitmap holds.
func (a *Allocator) learnLocked(g *group, bitmap []byte) {
	if g.known.Load() {
		return
	}
	g.low = nextClear(bitmap, 0, g.blocks)
	g.longest.Store(longestRun(bitmap, g.blocks))
	g.known.Store(true)
}

func (a *Allocator) checkBlockBitmapLocked(g *group, bitmap []byte) error {
	if c := a.sb.BlockBitmapCsum(bitmap); a.sb.MetadataCsum() && c != g.desc.BlockBitmapCsum {
		return disk.Corrupt(g.name(), "block bitmap's checksum is %#x, should be %#x", g.desc.BlockBitmapCsum, c)
	}
	if n := countClear(bitmap, g.blocks); n != g.desc.FreeBlocksCount {
		return disk.Corrupt(g.name(), "%d blocks are free in the bitmap, the descriptor says %d", n, g.desc.FreeBlocksCount)
	}
	var err error
	first := a.first(g)
	a.meta.within(first, first+disk.Block(g.blocks), func(z zone) {
		if from, to := uint32(z.start-first), uint32(z.end-first); nextClear(bitmap, from, to) < to && err == nil {
			err = disk.Corrupt(g.name(), "blocks %d to %d hold metadata, the bitmap says that some are free", z.start, z.end-1)
		}
	})
	return err
}

// inodeBitmapLocked gets the group's inode bitmap, checked. The caller puts it.
func (a *Allocator) inodeBitmapLocked(g *group) (*jbd2.Buffer, error) {
	if g.desc.Flags&disk.BGInodeUninit != 0 && a.sb.HasGroupCsum() {
		return a.initInodeBitmapLocked(g)
	}
	buf, err := a.cache.Get(disk.Block(g.desc.InodeBitmap))
	if err != nil {
		return nil, err
	}
	if !buf.Verified() {
		bitmap := buf.Data()
		if c := a.sb.InodeBitmapCsum(bitmap); a.sb.MetadataCsum() && c != g.desc.InodeBitmapCsum {
			err = disk.Corrupt(g.name(), "inode bitmap's checksum is %#x, should be %#x", g.desc.InodeBitmapCsum, c)
		} else if n := countClear(bitmap, a.sb.InodesPerGroup); n != g.desc.FreeInodesCount {
			err = disk.Corrupt(g.name(), "%d inodes are free in the bitmap, the descriptor says %d", n, g.desc.FreeInodesCount)
		} else if i := nextSet(bitmap, a.usedInodes(g), a.sb.InodesPerGroup); i < a.sb.InodesPerGroup {
			err = disk.Corrupt(g.name(), "inode %d is in use, the descriptor says that its slot never was", g.n*a.sb.InodesPerGroup+i+1)
		}
		if err != nil {
			buf.Put()
			return nil, err
		}
		buf.SetVerified()
	}
	return buf, nil
}
