package alloc

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// AllocInode takes a free inode: for a file near its parent directory, for a directory where findDirGroup says. What its
// slot holds is undefined, unless the slot was never used: then it holds zeroes.
func (a *Allocator) AllocInode(h *jbd2.Handle, parent uint32, isDir bool) (uint32, error) {
	if a.sb.Bigalloc() {
		return 0, ErrReadOnly
	}
	home := uint32(0)
	if a.sb.ValidIno(parent) {
		home = (parent - 1) / a.sb.InodesPerGroup
	}
	if isDir {
		home = a.findDirGroup(home, parent == disk.InoRoot)
	} else {
		home = a.findFileGroup(home)
	}
	seen := a.passed.Load()
	ino, err := a.searchInode(h, home, isDir)
	if err == ErrNoInodes && a.looksAgain(noInodes, seen) {
		ino, err = a.searchInode(h, home, isDir)
	}
	if err == ErrNoInodes {
		err = a.passedOver(noInodes, err)
	}
	return ino, err
}

// searchInode takes the first free inode of the first group that has one, beginning with home.
func (a *Allocator) searchInode(h *jbd2.Handle, home uint32, isDir bool) (uint32, error) {
	count := uint32(len(a.groups))
	for k := range count {
		g := &a.groups[(home+k)%count]
		if g.freeInodes.Load() == 0 || g.noInodes.Load().now() != nil {
			continue
		}
		ino, err := a.takeInode(h, g, isDir)
		if ino != 0 || err != nil {
			return ino, err
		}
	}
	return 0, ErrNoInodes
}

// takeInode takes the first free inode of a group, 0 if there is none.
func (a *Allocator) takeInode(h *jbd2.Handle, g *group, isDir bool) (uint32, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.desc.FreeInodesCount == 0 {
		return 0, nil
	}
	buf, err := a.inodeBitmapLocked(g)
	if err != nil {
		if a.passes(&g.noInodes, err) {
			err = nil
		}
		return 0, err
	}
	defer buf.Put()
	per := a.sb.InodesPerGroup
	first := uint32(0)
	if before := g.n * per; before < a.sb.FirstIno-1 {
		first = a.sb.FirstIno - 1 - before // those below have fixed meanings, whatever the bitmap says
	}
	i := nextClear(buf.Data(), max(g.lowIno, first), per)
	if i >= per {
		return 0, nil
	}
	if err := a.takeInodeLocked(h, g, buf, i, isDir); err != nil {
		return 0, err
	}
	g.lowIno = i + 1
	return g.n*per + i + 1, nil
}

// takeInodeLocked takes the free inode i of a group, whose inode bitmap buf holds.
func (a *Allocator) takeInodeLocked(h *jbd2.Handle, g *group, buf *jbd2.Buffer, i uint32, isDir bool) error {
	// A group whose inodes are used has a block bitmap, too: others expect it so.
	if g.desc.Flags&disk.BGBlockUninit != 0 && a.sb.HasGroupCsum() {
		blocks, err := a.blockBitmapLocked(g)
		if err != nil {
			return err
		}
		blocks.Lock()
		a.useBlocksLocked(h, g, blocks)
		blocks.Unlock()
		blocks.Put()
	}
	if err := a.useInodeLocked(h, g, i); err != nil {
		return err
	}
	h.OnUndo(func() { a.untakeInode(h, g, buf, i, isDir) }, buf)
	buf.Lock()
	setBits(buf.Data(), i, i+1)
	h.DirtyShared(buf)
	buf.Unlock()
	a.countInodeLocked(h, g, buf, -1, isDir)
	return nil
}

// countInodeLocked brings counters and descriptor up to date after the bitmap in buf changed: free inodes by d.
func (a *Allocator) countInodeLocked(h *jbd2.Handle, g *group, buf *jbd2.Buffer, d int, isDir bool) {
	g.desc.Flags &^= disk.BGInodeUninit
	g.desc.InodeBitmapCsum = a.sb.InodeBitmapCsum(buf.Data())
	g.desc.FreeInodesCount += uint32(d)
	g.freeInodes.Store(g.desc.FreeInodesCount)
	a.freeInodes.Add(int64(d))
	if isDir {
		g.desc.UsedDirsCount -= uint32(d)
		g.dirs.Store(g.desc.UsedDirsCount)
		a.dirs.Add(-int64(d))
	}
	a.storeDescLocked(h, g)
}

// FreeInode gives an inode back.
func (a *Allocator) FreeInode(h *jbd2.Handle, ino uint32, isDir bool) error {
	if a.sb.Bigalloc() {
		return ErrReadOnly
	}
	if !a.sb.ValidIno(ino) || ino < a.sb.FirstIno && ino != disk.InoRoot || ino == disk.InoRoot {
		return disk.Corrupt("inode bitmaps", "freeing inode %d, which is not a file's", ino)
	}
	per := a.sb.InodesPerGroup
	g, i := &a.groups[(ino-1)/per], (ino-1)%per
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.inodeBitmapLocked(g)
	if err != nil {
		return err
	}
	defer buf.Put()
	if !testBit(buf.Data(), i) {
		return disk.Corrupt(g.name(), "freeing inode %d, which is free already", ino)
	}
	if isDir && g.desc.UsedDirsCount == 0 {
		return disk.Corrupt(g.name(), "freeing directory %d, the descriptor counts none", ino)
	}
	h.OnUndo(func() { a.unfreeInode(h, g, buf, i, isDir) }, buf)
	buf.Lock()
	clearBits(buf.Data(), i, i+1)
	h.DirtyShared(buf)
	buf.Unlock()
	g.lowIno = min(g.lowIno, i)
	a.countInodeLocked(h, g, buf, +1, isDir)
	return nil
}

// InodeInUse says whether the inode bitmap has ino.
func (a *Allocator) InodeInUse(ino uint32) (bool, error) {
	if !a.sb.ValidIno(ino) {
		return false, nil
	}
	per := a.sb.InodesPerGroup
	g, i := &a.groups[(ino-1)/per], (ino-1)%per
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.desc.Flags&disk.BGInodeUninit != 0 && a.sb.HasGroupCsum() {
		return false, nil
	}
	buf, err := a.inodeBitmapLocked(g)
	if err != nil {
		return false, err
	}
	defer buf.Put()
	return testBit(buf.Data(), i), nil
}
