package recovery

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// get is inode ino if it is in use, nil if not: what a record says of it is void then.
func (f *fastCommits) get(ino uint32) (*volume.Inode, error) {
	if i := f.inodes[ino]; i != nil {
		return i, nil
	}
	if ino < f.v.Super.FirstIno && ino != disk.InoRoot {
		return nil, disk.Corrupt("fast commits", "inode %d cannot be there", ino)
	}
	used, err := f.v.Alloc.InodeInUse(ino)
	if err != nil || !used {
		return nil, err
	}
	i, err := f.v.Get(ino)
	if err == nil {
		f.inodes[ino] = i
	}
	return i, err
}

// inode gives an inode the members that the record has, all but its tree: the records of ranges change that.
func (f *fastCommits) inode(r jbd2.FCInode) error {
	v := f.v
	if !v.Super.ValidIno(r.Ino) || r.Ino < v.Super.FirstIno {
		return disk.Corrupt("fast commits", "inode %d cannot be there", r.Ino)
	}
	raw := make([]byte, v.Super.InodeSize)
	copy(raw, r.Raw)
	d, err := v.Super.DecodeInode(r.Ino, raw)
	if err != nil {
		return err
	}
	if err := v.CheckInode(r.Ino, &d); err != nil {
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
	case i.Disk.Generation != d.Generation || i.Disk.Mode&disk.ModeFmt != d.Mode&disk.ModeFmt:
		// Another file had the number before.
		if err := f.empty(i, d.IsDir()); err != nil {
			return err
		}
		fresh = true
	}
	old := i.Disk
	i.Disk = d
	i.Disk.Dtime = 0
	i.Disk.FileACL = old.FileACL
	if fresh {
		i.Disk.FileACL = d.FileACL
	}
	switch {
	case i.IsInline() || i.Disk.IsLink() && i.NoBlocks() || !i.Disk.IsReg() && !i.Disk.IsDir() && !i.Disk.IsLink():
		// i_block is the content, and the body has the rest of it.
		if !fresh {
			kept := i.Disk
			i.Disk = old
			if err := f.removeTree(i); err != nil {
				return err
			}
			i.Disk = kept
		}
	case fresh || old.Flags&disk.FlInlineData != 0:
		clear(i.Disk.Block[:])
		if d.Flags&disk.FlExtents != 0 {
			extent.Format(i.Disk.Block[:])
		}
	default:
		i.Disk.Block = old.Block
		i.Disk.Flags = i.Disk.Flags&^(disk.FlExtents|disk.FlHugeFile) | old.Flags&(disk.FlExtents|disk.FlHugeFile)
	}
	if i.Disk.IsDir() && !i.IsInline() {
		i.Disk.Size, i.Disk.Flags = old.Size, i.Disk.Flags&^disk.FlIndex|old.Flags&disk.FlIndex
		if fresh {
			i.Disk.Size, i.Disk.Flags = 0, i.Disk.Flags&^disk.FlIndex
		}
	}
	i.Disk.RawBlocks = old.RawBlocks
	if fresh {
		i.Disk.RawBlocks = 0
		i.Disk.Flags &^= disk.FlHugeFile
		if i.Disk.FileACL != 0 {
			contents.AddBlocks(i, 1)
		}
	}
	if err := f.slot(i, r.Raw, fresh); err != nil {
		return err
	}
	if !fresh && old.Flags&disk.FlInlineData != 0 && !i.IsInline() {
		c, err := contents.ReadInline(i)
		if err != nil {
			return err
		}
		return c.Drop(f.o) // it has a block now
	}
	return nil
}

// slot writes the inode and what the record has of its body.
func (f *fastCommits) slot(i *volume.Inode, raw []byte, fresh bool) error {
	err := f.o.ChangeSlot(i, func(slot []byte) {
		if fresh {
			clear(slot)
		}
		if n := disk.InodeSizeRev0 + int(i.Disk.ExtraIsize); len(raw) > n && len(slot) > n {
			copy(slot[n:], raw[n:])
		}
	})
	if err != nil {
		return err
	}
	return i.Store(f.o)
}

// newInode takes inode number ino for a file that the records made.
func (f *fastCommits) newInode(ino uint32, d *disk.Inode) (*volume.Inode, error) {
	v := f.v
	if _, err := v.Alloc.ClaimInode(f.o.Handle, ino, d.IsDir()); err != nil {
		return nil, err
	}
	i := v.EnterUnread(ino)
	f.inodes[ino] = i
	return i, nil
}

// empty frees all that an inode has but its number, which is taken again: for a directory if isDir.
func (f *fastCommits) empty(i *volume.Inode, isDir bool) error {
	if err := f.removeTree(i); err != nil {
		return err
	}
	if err := attrs.FreeXattrs(i, f.o); err != nil {
		return err
	}
	delete(f.dirs, i)
	i.Layout.Store(nil)
	i.DirMap.Forget()
	if err := f.v.Alloc.FreeInode(f.o.Handle, i.Ino(), i.Disk.IsDir()); err != nil {
		return err
	}
	_, err := f.v.Alloc.ClaimInode(f.o.Handle, i.Ino(), isDir)
	return err
}

// removeTree takes its blocks from an inode.
func (f *fastCommits) removeTree(i *volume.Inode) error {
	if !i.HasBlocks() {
		return nil
	}
	return f.unmap(i, 0, extent.MaxBlock)
}
