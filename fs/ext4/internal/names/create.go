package names

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

const (
	maxName  = 255
	MaxLinks = 65000 // [layout] Directory Entries, EXT4_LINK_MAX
)

// CheckName refuses what cannot be the name of a file.
func CheckName(name string) error {
	switch {
	case len(name) > maxName:
		return volume.ErrNameTooLong
	case name == "", name == ".", name == "..":
		return volume.ErrInvalid
	}
	return nil
}

// writableDir refuses what a directory cannot take. Mu is held.
func writableDir(i *volume.Inode) error {
	switch {
	case !i.Disk.IsDir():
		return volume.ErrNotDir
	case i.Disk.LinksCount == 0:
		return volume.ErrNotExist // removed while open
	case i.Disk.Flags&disk.FlImmutable != 0:
		return volume.ErrPerm
	}
	return nil
}

// Create makes a file of the kind that mode says: regular, fifo, socket, or a device with the given number.
func Create(i *volume.Inode, name string, mode, uid, gid, major, minor uint32, with ...volume.With) (*volume.Inode, error) {
	return create(i, name, volume.MakingOf(with), func(o *volume.Op) (*volume.Inode, error) {
		n, err := attrs.New(i, o, uint16(mode), uid, gid)
		if err == nil && n.Disk.IsDevice() && !n.Disk.SetDevice(major, minor) {
			err = volume.ErrInvalid
		}
		return n, err
	})
}

// Mkdir makes a directory.
func Mkdir(i *volume.Inode, name string, mode, uid, gid uint32, with ...volume.With) (*volume.Inode, error) {
	return create(i, name, volume.MakingOf(with), func(o *volume.Op) (*volume.Inode, error) {
		if i.Disk.LinksCount >= MaxLinks && !i.FS.Super.FeatureROCompat.Has(disk.ROCompatDirNlink) {
			return nil, volume.ErrTooManyLink
		}
		n, err := attrs.New(i, o, disk.ModeDir|uint16(mode&attrs.ModePerm), uid, gid)
		if err != nil {
			return nil, err
		}
		n.Disk.LinksCount = 2
		return n, DirInit(n, o, i.Ino())
	})
}

// create runs f for a new inode and gives it a name.
func create(i *volume.Inode, name string, m volume.Making, f func(o *volume.Op) (*volume.Inode, error)) (n *volume.Inode, err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	err = i.FS.Change(m.May, func(o *volume.Op) error {
		o.Lock(i)
		if err := nameFree(i, name); err != nil {
			return err
		}
		return o.Do(attrs.MakeCredits(&m), func() (err error) {
			if n, err = f(o); err != nil {
				return err
			}
			if err := attrs.PutNewXattrs(n, o, m.Xattrs); err != nil {
				return err
			}
			if err := DirInsert(i, o, name, n.Ino(), n.Disk.Mode); err != nil {
				return err
			}
			if n.Disk.IsDir() {
				addDirLink(i)
			}
			i.Touch(time.Now())
			if err := n.Store(o); err != nil {
				return err
			}
			return i.Store(o)
		})
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// nameFree refuses a name that the directory can't take. Mu is held.
func nameFree(i *volume.Inode, name string) error {
	if err := writableDir(i); err != nil {
		return err
	}
	switch _, _, err := DirLookup(i, name); {
	case err == nil:
		return volume.ErrExist
	case !errors.Is(err, volume.ErrNotExist):
		return err
	}
	return dirDamage(i)
}

// addDirLink counts one more subdirectory. More than the format can count are not counted: 1 says so.
func addDirLink(i *volume.Inode) {
	if i.Disk.LinksCount == 1 {
		return
	}
	if i.Disk.LinksCount++; i.Disk.LinksCount > MaxLinks {
		i.Disk.LinksCount = 1
	}
}

func removeDirLink(i *volume.Inode) {
	if i.Disk.LinksCount > 2 {
		i.Disk.LinksCount--
	}
}

// Tmpfile makes a regular file without a name in the directory: an orphan until it is linked.
func Tmpfile(i *volume.Inode, mode, uid, gid uint32, with ...volume.With) (n *volume.Inode, err error) {
	m := volume.MakingOf(with)
	err = i.FS.Change(m.May, func(o *volume.Op) error {
		o.Lock(i)
		if i.Disk.IsDir() && i.Disk.LinksCount == 0 {
			return volume.ErrPerm // as with the kernel, where a name is ErrNotExist
		}
		if err := writableDir(i); err != nil {
			return err
		}
		return o.Do(attrs.MakeCredits(&m), func() (err error) {
			if n, err = attrs.New(i, o, disk.ModeReg|uint16(mode&attrs.ModePerm), uid, gid); err != nil {
				return err
			}
			if err := attrs.PutNewXattrs(n, o, m.Xattrs); err != nil {
				return err
			}
			n.Disk.LinksCount = 0
			if err := i.FS.AddOrphan(o, n); err != nil {
				return err
			}
			return n.Store(o)
		})
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}
