package names

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Unlink removes the name of a file that is not a directory.
func Unlink(i *volume.Inode, name string) error { return remove(i, name, false) }

// Rmdir removes an empty directory.
func Rmdir(i *volume.Inode, name string) error { return remove(i, name, true) }

func remove(i *volume.Inode, name string, dir bool) error {
	switch {
	case !i.FS.Writable():
		return volume.ErrReadOnly // before anything else, as the kernel says it
	case len(name) > maxName:
		return volume.ErrNameTooLong
	case name == "." || name == "":
		return volume.ErrInvalid
	case name == "..":
		return volume.ErrNotEmpty
	}
	return i.FS.Change(nil, func(o *volume.Op) error {
		o.Lock(i)
		if err := writableDir(i); err != nil {
			return err
		}
		c, err := lookup(i, name)
		if err != nil {
			return err
		}
		o.Later(c.Put)
		if err := dirDamage(i); err != nil {
			return err
		}
		if c == i {
			return disk.Corrupt(volume.InodeName(i.Ino()), "directory names itself %q", name)
		}
		o.Lock(c)
		if i.Disk.Flags&disk.FlAppend != 0 {
			return volume.ErrPerm // before what c is, as the kernel says it
		}
		if err := removable(c, dir); err != nil {
			return err
		}
		return o.Do(attrs.CreateCredits, func() error {
			if err := DirRemove(i, o, name); err != nil {
				return err
			}
			now := time.Now()
			if dir {
				removeDirLink(i)
			}
			i.Touch(now)
			if err := i.Store(o); err != nil {
				return err
			}
			return unlinked(c, o, now)
		})
	})
}

// removable says whether the last name of c may go. Mu is held.
func removable(c *volume.Inode, dir bool) error {
	switch {
	case c.Disk.Flags&(disk.FlImmutable|disk.FlAppend) != 0:
		return volume.ErrPerm
	case dir && !c.Disk.IsDir():
		return volume.ErrNotDir
	case !dir && c.Disk.IsDir():
		return volume.ErrIsDir
	case c.Ino() == disk.InoRoot:
		return volume.ErrInvalid
	}
	if dir {
		if err := dirEmpty(c); err != nil {
			return err
		}
	}
	if c.Disk.IsDir() || c.Disk.LinksCount <= 1 {
		return freeable(c)
	}
	return nil
}

// freeable reports damage that would keep the inode from being freed, before its last name goes. Mu is held.
func freeable(c *volume.Inode) error {
	if c.Disk.IsDir() && c.HasBlocks() && c.Disk.Flags&disk.FlExtents != 0 {
		switch x, ok, err := contents.Extents(c, nil).Last(); {
		case err != nil:
			return err
		case ok && uint64(x.End()) > c.Disk.Size>>c.FS.BlockBits:
			return disk.Corrupt(volume.InodeName(c.Ino()), "directory of %d bytes with a block at %d", c.Disk.Size, x.End()-1)
		}
	}
	if c.HasBlocks() { // of many blocks, the first
		switch x, err := contents.At(c, 0); {
		case err != nil:
			return err
		case !x.Hole():
			if err := c.FS.Alloc.InUse(x.Pblk); err != nil {
				return err
			}
		}
	}
	if used, err := c.FS.Alloc.InodeInUse(c.Ino()); err != nil || !used {
		if err == nil {
			err = disk.Corrupt(volume.InodeName(c.Ino()), "has names, the bitmap says that it is free")
		}
		return err
	}
	_, err := c.ParseXattrs()
	return err
}

// unlinked counts one name less; without one the inode is an orphan until the last Put frees it.
func unlinked(c *volume.Inode, o *volume.Op, now time.Time) error {
	c.Stamp(disk.TimestampOf(now))
	switch {
	case c.Disk.IsDir():
		c.Disk.LinksCount = 0
		c.Disk.Size = 0
	case c.Disk.LinksCount > 0:
		c.Disk.LinksCount--
	}
	if c.Disk.LinksCount == 0 {
		if err := c.FS.AddOrphan(o, c); err != nil {
			return err
		}
	}
	return c.Store(o)
}
