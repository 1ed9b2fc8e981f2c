package ext4

import (
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Lookup finds name in the directory.
func (i *Inode) Lookup(name string) (_ *Inode, err error) {
	defer i.fs.noteTo(&err)
	defer i.noteDamage()
	if len(name) > maxName {
		return nil, ErrNameTooLong
	}
	i.mu.RLock()
	if name != ".." {
		defer i.mu.RUnlock()
		return i.lookup(name)
	}
	up, _, err := i.dirLookup(name)
	i.mu.RUnlock() // the directory above is not locked after this one
	if err != nil {
		return nil, err
	}
	return i.fs.get(up)
}

// lookup is Lookup under mu.
func (i *Inode) lookup(name string) (*Inode, error) {
	if !i.d.IsDir() {
		return nil, ErrNotDir
	}
	if i.d.LinksCount == 0 {
		return nil, ErrNotExist
	}
	ino, _, err := i.dirLookup(name)
	if err != nil {
		return nil, err
	}
	if ino == i.Ino() && name != "." && name != ".." {
		return nil, disk.Corrupt(inodeName(i.Ino()), "directory names itself %q", name)
	}
	return i.fs.linked(ino)
}

// Link gives target one more name.
func (i *Inode) Link(target *Inode, name string, may ...May) error {
	if err := checkName(name); err != nil {
		return err
	}
	return i.fs.change(may, func(o *op) error {
		o.lock(i)
		if err := i.writableDir(); err != nil {
			return err
		}
		if target == i {
			return ErrPerm
		}
		o.lock(target)
		d := &target.d
		switch {
		case d.IsDir(), d.Flags&(disk.FlImmutable|disk.FlAppend) != 0:
			return ErrPerm
		case i.d.Flags&disk.FlProjinherit != 0 && i.d.Projid != d.Projid:
			return ErrCrossDevice
		case d.LinksCount >= maxLinks:
			return ErrTooManyLink
		}
		if err := i.nameFree(name); err != nil {
			return err
		}
		return o.do(createCredits, func() error {
			if err := i.dirInsert(o, name, target.Ino(), d.Mode); err != nil {
				return err
			}
			if d.LinksCount == 0 {
				if err := i.fs.removeOrphan(o, target); err != nil {
					return err
				}
			}
			now := time.Now()
			d.LinksCount++
			target.stamp(disk.TimestampOf(now))
			i.touch(now)
			if err := target.store(o); err != nil {
				return err
			}
			return i.store(o)
		})
	})
}
