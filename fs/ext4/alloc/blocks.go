package alloc

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// How Alloc looks for blocks:
//
//  1. promise: take the number off what is available in the volume, so that every search finds something;
//  2. at the goal itself, if enough lies there;
//  3. in the goal's group, then in the groups after it, the first run that holds everything wanted, at a place aligned to
//     its size; groups whose longest run is known to be shorter are passed over;
//  4. with half of what was wanted, and half of that, down to the least the caller takes.

// alignBytes is the largest alignment that a run is given, what a GPU's memory is mapped in.
const alignBytes = 2 << 20

// peeks is how many groups a search looks into that it knows nothing about, as long as it would take less.
const peeks = 8

// Alloc takes a run of up to want free blocks, at least least of them, at goal or as near after it as there is a good
// run. The run lies in one group. A goal outside the volume means its start.
func (a *Allocator) Alloc(h *jbd2.Handle, goal disk.Block, want, least uint32, flags int) (disk.Block, uint32, error) {
	if a.sb.Bigalloc() {
		return 0, 0, ErrReadOnly
	}
	least = max(least, 1)
	if want < least {
		return 0, 0, fmt.Errorf("alloc: %d blocks wanted, at least %d", want, least)
	}
	want = min(want, max(a.sb.BlocksPerGroup, least))
	n := a.promise(want, least, flags)
	if n == 0 && a.dropWindows() {
		n = a.promise(want, least, flags)
	}
	if n == 0 {
		return 0, 0, ErrNoSpace
	}
	seen := a.passed.Load()
	start, got, err := a.search(h, goal, n, least)
	if err == ErrNoSpace && a.dropWindows() {
		start, got, err = a.search(h, goal, n, least)
	}
	if err == ErrNoSpace && a.looksAgain(noBlocks, seen) {
		start, got, err = a.search(h, goal, n, least)
	}
	if err == ErrNoSpace {
		err = a.passedOver(noBlocks, err)
	}
	a.avail.Add(int64(n) - int64(got))
	return start, got, err
}

// keeps is how many of the free blocks are not for who comes with these flags.
func (a *Allocator) keeps(flags int) int64 {
	switch {
	case flags&UseNodes != 0:
		return 0
	case flags&UseReserved != 0:
		return a.nodes
	}
	return a.nodes + a.reserved.Load()
}

// Kept is how many free blocks are not for everybody's data: those that are reserved for the superuser, and those for nodes.
func (a *Allocator) Kept() uint64 { return uint64(a.keeps(0)) }

// promise takes up to want blocks, but not fewer than least, off those available. It returns 0 if there are too few.
func (a *Allocator) promise(want, least uint32, flags int) uint32 {
	keep := a.keeps(flags)
	for {
		have := a.avail.Load()
		if have-keep < int64(least) {
			return 0
		}
		n := min(int64(want), have-keep)
		if a.avail.CompareAndSwap(have, have-n) {
			return uint32(n)
		}
	}
}

// search finds and takes the run. Others may take what it was about to, so it goes round again before it gives up.
func (a *Allocator) search(h *jbd2.Handle, goal disk.Block, want, least uint32) (disk.Block, uint32, error) {
	home, bit := a.home(goal)
	off, n, err := a.takeAt(h, home, bit, want, least)
	if n > 0 || err != nil && !a.passes(&home.noBlocks, err) {
		return a.first(home) + disk.Block(off), n, err
	}
	for range 3 {
		left := peeks
		for target := want; ; target = max(target/2, least) {
			g, off, n, err := a.sweep(h, home, bit, want, target, target == least, &left)
			if n > 0 || err != nil {
				return a.first(g) + disk.Block(off), n, err
			}
			if target == least {
				break
			}
		}
	}
	return 0, 0, ErrNoSpace
}

// home is where a search begins: at the goal, or at the start of the volume.
func (a *Allocator) home(goal disk.Block) (*group, uint32) {
	if goal >= disk.Block(a.sb.FirstDataBlock) && uint64(goal) < a.sb.BlocksCount {
		return a.groupOf(goal)
	}
	return &a.groups[0], 0
}

// sweep goes once round the groups for a run of at least target blocks.
func (a *Allocator) sweep(h *jbd2.Handle, home *group, bit, want, target uint32, last bool, left *int) (*group, uint32, uint32, error) {
	count := uint32(len(a.groups))
	for k := range count {
		g := &a.groups[(home.n+k)%count]
		if g.avail.Load() < target || g.longest.Load() < target || g.noBlocks.Load().now() != nil {
			continue
		}
		if !g.known.Load() && !last && k > 0 {
			if *left == 0 {
				continue
			}
			*left--
		}
		if k > 0 {
			bit = 0
		}
		off, n, err := a.takeIn(h, g, bit, want, target)
		if n > 0 || err != nil && !a.passes(&g.noBlocks, err) {
			return g, off, n, err
		}
	}
	return home, 0, 0, nil
}

// takeAt takes blocks at bit if those wanted are free there, or a good part of them.
func (a *Allocator) takeAt(h *jbd2.Handle, g *group, bit, want, least uint32) (uint32, uint32, error) {
	if g.avail.Load() < least || g.noBlocks.Load().now() != nil {
		return 0, 0, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return 0, 0, err
	}
	defer buf.Put()
	n := nextSet(g.bitmapLocked(buf), bit, min(uint64ToBit(uint64(bit)+uint64(want)), g.blocks)) - bit
	if bit >= g.blocks || n < least || n < want/4 {
		return 0, 0, nil
	}
	a.takeLocked(h, g, buf, bit, n)
	return bit, n, nil
}

// takeIn takes a run of target to want blocks from group g, at or after bit if possible.
func (a *Allocator) takeIn(h *jbd2.Handle, g *group, bit, want, target uint32) (uint32, uint32, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return 0, 0, err
	}
	defer buf.Put()
	r, exact := findRun(g.bitmapLocked(buf), g.blocks, min(max(bit, g.low), g.blocks), want, uint64(a.first(g)), a.alignment(want))
	if exact {
		g.longest.Store(r.n)
	}
	if r.n < target {
		return 0, 0, nil
	}
	n := min(r.n, want)
	a.takeLocked(h, g, buf, r.off, n)
	return r.off, n, nil
}

// alignment is what the start of a run of n blocks should be a multiple of: the greatest power of two in n, if the run
// is worth it.
func (a *Allocator) alignment(n uint32) uint32 {
	align := uint32(1)
	for align*2 <= n && align*2 <= alignBytes>>a.sb.BlockBits() {
		align *= 2
	}
	if align < 16 {
		return 1
	}
	return align
}

// bitmapLocked is where to look for blocks that can be given out; buf holds the group's block bitmap.
func (g *group) bitmapLocked(buf *jbd2.Buffer) []byte {
	if g.busy != nil {
		return g.busy
	}
	return buf.Data()
}

// takeLocked marks n blocks from bit off of the group as in use; buf holds its block bitmap. The blocks were promised.
func (a *Allocator) takeLocked(h *jbd2.Handle, g *group, buf *jbd2.Buffer, off, n uint32) {
	h.OnUndo(func() { a.untake(h, g, buf, off, n) }, buf)
	buf.Lock()
	setBits(buf.Data(), off, off+n)
	g.desc.FreeBlocksCount -= n
	a.useBlocksLocked(h, g, buf)
	buf.Unlock()
	if g.busy != nil {
		setBits(g.busy, off, off+n)
	}
	if off <= g.low && g.low < off+n {
		g.low = off + n
	}
	g.availLocked()
	a.free.Add(-int64(n))
	a.storeDescLocked(h, g)
}

func uint64ToBit(n uint64) uint32 { return uint32(min(n, 1<<31)) }

// Free gives back n blocks from b, which may lie in several groups. They can be used again after the commit.
func (a *Allocator) Free(h *jbd2.Handle, b disk.Block, n uint32) error {
	if a.sb.Bigalloc() {
		return ErrReadOnly
	}
	if !a.Valid(b, n) {
		return disk.Corrupt("block bitmaps", "freeing blocks %d+%d, which are not a file's", b, n)
	}
	for n > 0 {
		g, off := a.groupOf(b)
		k := min(n, g.blocks-off)
		if err := a.freeIn(h, g, off, k); err != nil {
			return err
		}
		b += disk.Block(k)
		n -= k
	}
	return nil
}

// InUse returns what would keep block b from being freed.
func (a *Allocator) InUse(b disk.Block) error {
	if !a.Valid(b, 1) {
		return disk.Corrupt("block bitmaps", "block %d is not a file's", b)
	}
	g, off := a.groupOf(b)
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return err
	}
	defer buf.Put()
	if !testBit(buf.Data(), off) {
		return disk.Corrupt(g.name(), "block %d is a file's, the bitmap says that it is free", b)
	}
	return nil
}

func (a *Allocator) freeIn(h *jbd2.Handle, g *group, off, n uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return err
	}
	defer buf.Put()
	if i := nextClear(buf.Data(), off, off+n); i < off+n {
		return disk.Corrupt(g.name(), "freeing block %d, which is free already", a.first(g)+disk.Block(i))
	}
	h.OnUndo(func() { a.unfree(h, g, buf, off, n) }, buf)
	g.holdLocked(buf, off, n)
	buf.Lock()
	clearBits(buf.Data(), off, off+n)
	g.desc.FreeBlocksCount += n
	a.useBlocksLocked(h, g, buf)
	buf.Unlock()
	g.availLocked()
	a.free.Add(int64(n))
	a.storeDescLocked(h, g)
	g.pendLocked(a, h, run{off, n})
	return nil
}
