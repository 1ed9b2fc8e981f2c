package alloc

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// This file lists what is free and what is in use, and changes nothing. A concurrent
// change may be seen or not.

// FreeRuns calls f with every run of blocks that are free in the bitmaps, in order. A run ends with its group.
func (a *Allocator) FreeRuns(f func(start disk.Block, n uint32)) error {
	if a.sb.Bigalloc() {
		return ErrReadOnly
	}
	for k := range a.groups {
		g := &a.groups[k]
		bitmap, err := a.copyBitmap(g, g.blocks, a.blockBitmapLocked)
		if err != nil {
			return err
		}
		for i := nextClear(bitmap, 0, g.blocks); i < g.blocks; {
			end := nextSet(bitmap, i, g.blocks)
			f(a.first(g)+disk.Block(i), end-i)
			i = nextClear(bitmap, end, g.blocks)
		}
	}
	return nil
}

// InodesInUse calls f with every inode that is in use in the bitmaps, in order, until f reports false.
func (a *Allocator) InodesInUse(f func(ino uint32) bool) error {
	per := a.sb.InodesPerGroup
	for k := range a.groups {
		g := &a.groups[k]
		bitmap, err := a.copyBitmap(g, per, a.inodeBitmapLocked)
		if err != nil {
			return err
		}
		for i := nextSet(bitmap, 0, per); i < per; i = nextSet(bitmap, i+1, per) {
			if !f(g.n*per + i + 1) {
				return nil
			}
		}
	}
	return nil
}

// copyBitmap copies the bitmap that get gets of a group, n bits.
func (a *Allocator) copyBitmap(g *group, n uint32, get func(*group) (*jbd2.Buffer, error)) ([]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	buf, err := get(g)
	if err != nil {
		return nil, err
	}
	defer buf.Put()
	out := make([]byte, (n+63)/64*8)
	copy(out, buf.Data())
	return out, nil
}
