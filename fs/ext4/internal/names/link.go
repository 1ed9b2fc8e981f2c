package names

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/attrs"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Lookup finds name in the directory.
func Lookup(i *volume.Inode, name string) (_ *volume.Inode, err error) {
	defer i.FS.NoteTo(&err)
	defer noteDamage(i)
	if len(name) > maxName {
		return nil, volume.ErrNameTooLong
	}
	i.Mu.RLock()
	if name != ".." {
		defer i.Mu.RUnlock()
		return lookup(i, name)
	}
	up, _, err := DirLookup(i, name)
	i.Mu.RUnlock() // the directory above is not locked after this one
	if err != nil {
		return nil, err
	}
	return i.FS.Get(up)
}

// lookup is Lookup under Mu.
func lookup(i *volume.Inode, name string) (*volume.Inode, error) {
	if !i.Disk.IsDir() {
		return nil, volume.ErrNotDir
	}
	if i.Disk.LinksCount == 0 {
		return nil, volume.ErrNotExist
	}
	ino, _, err := DirLookup(i, name)
	if err != nil {
		return nil, err
	}
	if ino == i.Ino() && name != "." && name != ".." {
		return nil, disk.Corrupt(volume.InodeName(i.Ino()), "directory names itself %q", name)
	}
	return i.FS.Linked(ino)
}

// Link gives target one more name.
func Link(i *volume.Inode, target *volume.Inode, name string, may ...volume.May) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return i.FS.Change(may, func(o *volume.Op) error {
		o.Lock(i)
		if err := writableDir(i); err != nil {
			return err
		}
		if target == i {
			return volume.ErrPerm
		}
		o.Lock(target)
		d := &target.Disk
		switch {
		case d.IsDir(), d.Flags&(disk.FlImmutable|disk.FlAppend) != 0:
			return volume.ErrPerm
		case i.Disk.Flags&disk.FlProjinherit != 0 && i.Disk.Projid != d.Projid:
			return volume.ErrCrossDevice
		case d.LinksCount >= MaxLinks:
			return volume.ErrTooManyLink
		}
		if err := nameFree(i, name); err != nil {
			return err
		}
		return o.Do(attrs.CreateCredits, func() error {
			if err := DirInsert(i, o, name, target.Ino(), d.Mode); err != nil {
				return err
			}
			if d.LinksCount == 0 {
				if err := i.FS.RemoveOrphan(o, target); err != nil {
					return err
				}
			}
			now := time.Now()
			d.LinksCount++
			target.Stamp(disk.TimestampOf(now))
			i.Touch(now)
			if err := target.Store(o); err != nil {
				return err
			}
			return i.Store(o)
		})
	})
}
