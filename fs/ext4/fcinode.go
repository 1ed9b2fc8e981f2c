package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// get is inode ino if it is in use, nil if not: what a record says of it is void then.
func (f *fastCommits) get(ino uint32) (*Inode, error) {
	if i := f.inodes[ino]; i != nil {
		return i, nil
	}
	if ino < f.v.sb.FirstIno && ino != disk.InoRoot {
		return nil, disk.Corrupt("fast commits", "inode %d cannot be there", ino)
	}
	used, err := f.v.alloc.InodeInUse(ino)
	if err != nil || !used {
		return nil, err
	}
	i, err := f.v.get(ino)
	if err == nil {
		f.inodes[ino] = i
	}
	return i, err
}

// inode gives an inode the members that the record has: all but its tree, which the ranges change.
func (f *fastCommits) inode(r jbd2.FCInode) error {
	v := f.v
	if !v.sb.ValidIno(r.Ino) || r.Ino < v.sb.FirstIno {
		return disk.Corrupt("fast commits", "inode %d cannot be there", r.Ino)
	}
	raw := make([]byte, v.sb.InodeSize)
	copy(raw, r.Raw)
	d, err := v.sb.DecodeInode(r.Ino, raw)
	if err != nil {
		return err
	}
	if err := v.checkInode(r.Ino, &d); err != nil {
		return err
	}
	i, err := f.get(r.Ino)
	if err != nil {
		return err
	}
	fresh := i == nil
	switch {
	case fresh && (d.LinksCount == 0 || d.Mode == 0):
		return nil // deleted since
	case fresh:
		if i, err = f.newInode(r.Ino, &d); err != nil {
			return err
		}
	case i.d.Generation != d.Generation || i.d.Mode&disk.ModeFmt != d.Mode&disk.ModeFmt:
		// Another file had the number before.
		if err := f.empty(i, d.IsDir()); err != nil {
			return err
		}
		fresh = true
	}
	old := i.d
	i.d = d
	i.d.Dtime = 0
	i.d.FileACL = old.FileACL
	if fresh {
		i.d.FileACL = d.FileACL
	}
	switch {
	case i.inline() || i.d.IsLink() && i.noBlocks() || !i.d.IsReg() && !i.d.IsDir() && !i.d.IsLink():
		// i_block is the content, and the body has the rest of it.
		if !fresh {
			kept := i.d
			i.d = old
			if err := f.removeTree(i); err != nil {
				return err
			}
			i.d = kept
		}
	case fresh || old.Flags&disk.FlInlineData != 0:
		clear(i.d.Block[:])
		if d.Flags&disk.FlExtents != 0 {
			extent.Format(i.d.Block[:])
		}
	default:
		i.d.Block = old.Block
		i.d.Flags = i.d.Flags&^(disk.FlExtents|disk.FlHugeFile) | old.Flags&(disk.FlExtents|disk.FlHugeFile)
	}
	if i.d.IsDir() && !i.inline() {
		i.d.Size, i.d.Flags = old.Size, i.d.Flags&^disk.FlIndex|old.Flags&disk.FlIndex
		if fresh {
			i.d.Size, i.d.Flags = 0, i.d.Flags&^disk.FlIndex
		}
	}
	i.d.RawBlocks = old.RawBlocks
	if fresh {
		i.d.RawBlocks = 0
		i.d.Flags &^= disk.FlHugeFile
		if i.d.FileACL != 0 {
			i.addBlocks(1)
		}
	}
	if err := f.slot(i, r.Raw, fresh); err != nil {
		return err
	}
	if !fresh && old.Flags&disk.FlInlineData != 0 && !i.inline() {
		c, err := i.inlineContent()
		if err != nil {
			return err
		}
		return c.drop(f.o) // it has a block now
	}
	return nil
}

// slot writes the inode and what the record has of its body.
func (f *fastCommits) slot(i *Inode, raw []byte, fresh bool) error {
	err := f.o.changeSlot(i, func(slot []byte) {
		if fresh {
			clear(slot)
		}
		if n := disk.InodeSizeRev0 + int(i.d.ExtraIsize); len(raw) > n && len(slot) > n {
			copy(slot[n:], raw[n:])
		}
	})
	if err != nil {
		return err
	}
	return i.store(f.o)
}

// newInode takes inode number ino for a file that the records made.
func (f *fastCommits) newInode(ino uint32, d *disk.Inode) (*Inode, error) {
	v := f.v
	if _, err := v.alloc.ClaimInode(f.o.h, ino, d.IsDir()); err != nil {
		return nil, err
	}
	i := v.enterUnread(ino)
	f.inodes[ino] = i
	return i, nil
}

// empty lets go of all that an inode has, but for its number, which a directory has next or something else.
func (f *fastCommits) empty(i *Inode, isDir bool) error {
	if err := f.removeTree(i); err != nil {
		return err
	}
	if err := i.freeXattrs(f.o); err != nil {
		return err
	}
	delete(f.dirs, i)
	i.dir.Store(nil)
	if err := f.v.alloc.FreeInode(f.o.h, i.Ino(), i.d.IsDir()); err != nil {
		return err
	}
	_, err := f.v.alloc.ClaimInode(f.o.h, i.Ino(), isDir)
	return err
}

// removeTree takes its blocks from an inode.
func (f *fastCommits) removeTree(i *Inode) error {
	if !i.hasBlocks() {
		return nil
	}
	return f.unmap(i, 0, extent.MaxBlock)
}
