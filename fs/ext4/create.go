package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

const (
	maxName  = 255
	maxLinks = 65000 // [layout] Directory Entries, EXT4_LINK_MAX
)

func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return ErrNameTooLong
	case name == "", name == ".", name == "..":
		return ErrInvalid
	}
	return nil
}

// writableDir refuses what a directory cannot take. mu is held.
func (i *Inode) writableDir() error {
	switch {
	case !i.d.IsDir():
		return ErrNotDir
	case i.d.LinksCount == 0:
		return ErrNotExist // removed while open
	case i.d.Flags&disk.FlImmutable != 0:
		return ErrPerm
	}
	return nil
}

// Create makes a file of the kind that mode says: regular, fifo, socket, or a device with the given number.
func (i *Inode) Create(name string, mode, uid, gid, major, minor uint32, with ...With) (*Inode, error) {
	return i.make(name, makingOf(with), func(o *op) (*Inode, error) {
		n, err := i.newInode(o, uint16(mode), uid, gid)
		if err == nil && n.d.IsDevice() && !n.d.SetDevice(major, minor) {
			err = ErrInvalid
		}
		return n, err
	})
}

// Mkdir makes a directory.
func (i *Inode) Mkdir(name string, mode, uid, gid uint32, with ...With) (*Inode, error) {
	return i.make(name, makingOf(with), func(o *op) (*Inode, error) {
		if i.d.LinksCount >= maxLinks && !i.fs.sb.FeatureROCompat.Has(disk.ROCompatDirNlink) {
			return nil, ErrTooManyLink
		}
		n, err := i.newInode(o, disk.ModeDir|uint16(mode&modePerm), uid, gid)
		if err != nil {
			return nil, err
		}
		n.d.LinksCount = 2
		return n, n.dirInit(o, i.Ino())
	})
}

// make runs f for a new inode and gives it a name.
func (i *Inode) make(name string, m making, f func(o *op) (*Inode, error)) (n *Inode, err error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	err = i.fs.change(m.may, func(o *op) error {
		o.lock(i)
		if err := i.nameFree(name); err != nil {
			return err
		}
		return o.do(makeCredits(&m), func() (err error) {
			if n, err = f(o); err != nil {
				return err
			}
			if err := n.putNewXattrs(o, m.xattrs); err != nil {
				return err
			}
			if err := i.dirInsert(o, name, n.Ino(), n.d.Mode); err != nil {
				return err
			}
			if n.d.IsDir() {
				i.addDirLink()
			}
			i.touch(time.Now())
			if err := n.store(o); err != nil {
				return err
			}
			return i.store(o)
		})
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// nameFree refuses a name that the directory can't take. mu is held.
func (i *Inode) nameFree(name string) error {
	if err := i.writableDir(); err != nil {
		return err
	}
	switch _, _, err := i.dirLookup(name); {
	case err == nil:
		return ErrExist
	case !errors.Is(err, ErrNotExist):
		return err
	}
	return i.dirDamage()
}

// addDirLink counts one more subdirectory. More than the format can count are not counted: 1 says so.
func (i *Inode) addDirLink() {
	if i.d.LinksCount == 1 {
		return
	}
	if i.d.LinksCount++; i.d.LinksCount > maxLinks {
		i.d.LinksCount = 1
	}
}

func (i *Inode) removeDirLink() {
	if i.d.LinksCount > 2 {
		i.d.LinksCount--
	}
}

// Tmpfile makes a regular file without a name in the directory: an orphan until it is linked.
func (i *Inode) Tmpfile(mode, uid, gid uint32, with ...With) (n *Inode, err error) {
	m := makingOf(with)
	err = i.fs.change(m.may, func(o *op) error {
		o.lock(i)
		if err := i.writableDir(); err != nil {
			return err
		}
		return o.do(makeCredits(&m), func() (err error) {
			if n, err = i.newInode(o, disk.ModeReg|uint16(mode&modePerm), uid, gid); err != nil {
				return err
			}
			if err := n.putNewXattrs(o, m.xattrs); err != nil {
				return err
			}
			n.d.LinksCount = 0
			if err := i.fs.addOrphan(o, n); err != nil {
				return err
			}
			return n.store(o)
		})
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}
