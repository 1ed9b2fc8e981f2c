package ext4

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Unlink removes the name of a file that is not a directory.
func (i *Inode) Unlink(name string) error { return i.remove(name, false) }

// Rmdir removes an empty directory.
func (i *Inode) Rmdir(name string) error { return i.remove(name, true) }

func (i *Inode) remove(name string, dir bool) error {
	switch {
	case !i.fs.writable():
		return ErrReadOnly // before anything else, as the kernel says it
	case len(name) > maxName:
		return ErrNameTooLong
	case name == "." || name == "":
		return ErrInvalid
	case name == "..":
		return ErrNotEmpty
	}
	return i.fs.change(nil, func(o *op) error {
		o.lock(i)
		if err := i.writableDir(); err != nil {
			return err
		}
		c, err := i.lookup(name)
		if err != nil {
			return err
		}
		o.later(c.Put)
		if err := i.dirDamage(); err != nil {
			return err
		}
		if c == i {
			return disk.Corrupt(inodeName(i.Ino()), "directory names itself %q", name)
		}
		o.lock(c)
		if i.d.Flags&disk.FlAppend != 0 {
			return ErrPerm // before what c is, as the kernel says it
		}
		if err := c.removable(dir); err != nil {
			return err
		}
		return o.do(createCredits, func() error {
			if err := i.dirRemove(o, name); err != nil {
				return err
			}
			now := time.Now()
			if dir {
				i.removeDirLink()
			}
			i.touch(now)
			if err := i.store(o); err != nil {
				return err
			}
			return c.unlinked(o, now)
		})
	})
}

// removable says whether the last name of c may go. mu is held.
func (c *Inode) removable(dir bool) error {
	switch {
	case c.d.Flags&(disk.FlImmutable|disk.FlAppend) != 0:
		return ErrPerm
	case dir && !c.d.IsDir():
		return ErrNotDir
	case !dir && c.d.IsDir():
		return ErrIsDir
	case c.Ino() == disk.InoRoot:
		return ErrInvalid
	}
	if dir {
		if err := c.dirEmpty(); err != nil {
			return err
		}
	}
	if c.d.IsDir() || c.d.LinksCount <= 1 {
		return c.freeable()
	}
	return nil
}

// freeable tells of damage that would keep the inode from being freed, before its last name goes. mu is held.
func (c *Inode) freeable() error {
	if c.d.IsDir() && c.hasBlocks() && c.d.Flags&disk.FlExtents != 0 {
		switch x, ok, err := c.extents(nil).Last(); {
		case err != nil:
			return err
		case ok && uint64(x.End()) > c.d.Size>>c.fs.bits:
			return disk.Corrupt(inodeName(c.Ino()), "directory of %d bytes with a block at %d", c.d.Size, x.End()-1)
		}
	}
	if c.hasBlocks() { // of many blocks, the first
		switch x, err := c.tree(nil).Map(0, 1); {
		case err != nil:
			return err
		case !x.Hole():
			if err := c.fs.alloc.InUse(x.Pblk); err != nil {
				return err
			}
		}
	}
	if used, err := c.fs.alloc.InodeInUse(c.Ino()); err != nil || !used {
		if err == nil {
			err = disk.Corrupt(inodeName(c.Ino()), "has names, the bitmap says that it is free")
		}
		return err
	}
	_, err := c.parseXattrs()
	return err
}

// unlinked counts one name less; without one the inode is an orphan until the last Put frees it.
func (c *Inode) unlinked(o *op, now time.Time) error {
	c.stamp(disk.TimestampOf(now))
	switch {
	case c.d.IsDir():
		c.d.LinksCount = 0
		c.d.Size = 0
	case c.d.LinksCount > 0:
		c.d.LinksCount--
	}
	if c.d.LinksCount == 0 {
		if err := c.fs.addOrphan(o, c); err != nil {
			return err
		}
	}
	return c.store(o)
}
