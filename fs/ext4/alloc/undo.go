package alloc

import "github.com/lanefs/lanefs/fs/ext4/jbd2"

// Taking back what a handle took or freed. Bitmaps and descriptors belong to all handles at once, so that is done bit by
// bit. Everything it needs is in memory. What only prepares a group for its first use stays.

// untake makes n blocks from bit off free again, which h took; buf holds the group's block bitmap.
func (a *Allocator) untake(h *jbd2.Handle, g *group, buf *jbd2.Buffer, off, n uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf.Lock()
	clearBits(buf.Data(), off, off+n)
	g.desc.FreeBlocksCount += n
	a.useBlocksLocked(h, g, buf)
	buf.Unlock()
	if g.busy != nil {
		clearBits(g.busy, off, off+n)
	}
	g.foundLocked(g.bitmapLocked(buf), off, n)
	g.availLocked()
	a.free.Add(int64(n))
	a.avail.Add(int64(n))
	a.storeDescLocked(h, g)
}

// unfree makes n blocks from bit off used again, which h freed; buf holds the group's block bitmap.
func (a *Allocator) unfree(h *jbd2.Handle, g *group, buf *jbd2.Buffer, off, n uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf.Lock()
	setBits(buf.Data(), off, off+n)
	g.desc.FreeBlocksCount -= n
	a.useBlocksLocked(h, g, buf)
	buf.Unlock()
	g.unpendLocked(h.TID(), off, off+n)
	g.droppedLocked(n) // they are set in busy, as in the bitmap
	a.free.Add(-int64(n))
	a.storeDescLocked(h, g)
}

// unpendLocked takes bits [from, to) out of what waits for transaction tid.
func (g *group) unpendLocked(tid jbd2.TID, from, to uint32) {
	var rest []pending
	for _, p := range g.pending {
		start, end := p.run.off, p.run.off+p.run.n
		if p.tid != tid || end <= from || start >= to {
			rest = append(rest, p)
			continue
		}
		if start < from {
			rest = append(rest, pending{tid, run{start, from - start}})
		}
		if end > to {
			rest = append(rest, pending{tid, run{to, end - to}})
		}
	}
	g.pending = rest
}

// untakeInode makes inode i of the group free again, which h took; buf holds the inode bitmap.
func (a *Allocator) untakeInode(h *jbd2.Handle, g *group, buf *jbd2.Buffer, i uint32, isDir bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf.Lock()
	clearBits(buf.Data(), i, i+1)
	h.DirtyShared(buf)
	buf.Unlock()
	g.lowIno = min(g.lowIno, i)
	a.countInodeLocked(h, g, buf, +1, isDir)
}

// unfreeInode makes inode i of the group used again, which h freed; buf holds the inode bitmap.
func (a *Allocator) unfreeInode(h *jbd2.Handle, g *group, buf *jbd2.Buffer, i uint32, isDir bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf.Lock()
	setBits(buf.Data(), i, i+1)
	h.DirtyShared(buf)
	buf.Unlock()
	a.countInodeLocked(h, g, buf, -1, isDir)
}
