package alloc

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Claim makes n blocks from b taken, whatever they were, for recovery that knows whose they are. It calls taken with the
// runs that were free before.
func (a *Allocator) Claim(h *jbd2.Handle, b disk.Block, n uint32, taken func(b disk.Block, n uint32)) error {
	if a.sb.Bigalloc() {
		return ErrReadOnly
	}
	if !a.Valid(b, n) {
		return disk.Corrupt("block bitmaps", "claiming blocks %d+%d, which are not a file's", b, n)
	}
	for n > 0 {
		g, off := a.groupOf(b)
		k := min(n, g.blocks-off)
		if err := a.claimIn(h, g, off, off+k, taken); err != nil {
			return err
		}
		b += disk.Block(k)
		n -= k
	}
	return nil
}

func (a *Allocator) claimIn(h *jbd2.Handle, g *group, off, end uint32, taken func(disk.Block, uint32)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.blockBitmapLocked(g)
	if err != nil {
		return err
	}
	defer buf.Put()
	for off = nextClear(buf.Data(), off, end); off < end; off = nextClear(buf.Data(), off, end) {
		n := nextSet(buf.Data(), off, end) - off
		if g.busy != nil && nextSet(g.busy, off, off+n) < off+n {
			return disk.Corrupt(g.name(), "claiming blocks of %d to %d, which are being freed", a.first(g)+disk.Block(off), a.first(g)+disk.Block(off+n-1))
		}
		a.avail.Add(-int64(n))
		a.takeLocked(h, g, buf, off, n)
		if taken != nil {
			taken(a.first(g)+disk.Block(off), n)
		}
		off += n
	}
	return nil
}

// ClaimInode makes inode ino taken. It reports whether it was free before.
func (a *Allocator) ClaimInode(h *jbd2.Handle, ino uint32, isDir bool) (bool, error) {
	if a.sb.Bigalloc() {
		return false, ErrReadOnly
	}
	if !a.sb.ValidIno(ino) || ino < a.sb.FirstIno {
		return false, disk.Corrupt("inode bitmaps", "claiming inode %d, which is not a file's", ino)
	}
	per := a.sb.InodesPerGroup
	g, i := &a.groups[(ino-1)/per], (ino-1)%per
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := a.inodeBitmapLocked(g)
	if err != nil {
		return false, err
	}
	defer buf.Put()
	if testBit(buf.Data(), i) {
		return false, nil
	}
	return true, a.takeInodeLocked(h, g, buf, i, isDir)
}
