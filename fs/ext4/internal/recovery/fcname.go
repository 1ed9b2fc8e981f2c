package recovery

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/names"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// name makes or removes a name. It may have been made or removed already.
func (f *fastCommits) name(r jbd2.FCName) error {
	name := string(r.Name)
	if err := names.CheckName(name); err != nil {
		return disk.Corrupt("fast commits", "name %q: %v", name, err)
	}
	parent, err := f.get(r.Parent)
	if err != nil || parent == nil {
		return err
	}
	i, err := f.get(r.Ino)
	if err != nil || i == nil {
		return err
	}
	if !parent.Disk.IsDir() || parent == i {
		return disk.Corrupt("fast commits", "name %q in inode %d, which is no directory for it", name, parent.Ino())
	}
	have, _, err := names.DirLookup(parent, name)
	if err != nil && !errors.Is(err, volume.ErrNotExist) {
		return err
	}
	now := time.Now()
	if r.Tag == jbd2.FCUnlinkTag {
		if have != i.Ino() {
			return nil
		}
		if err := names.DirRemove(parent, f.o, name); err != nil {
			return err
		}
		if i.Disk.IsDir() {
			f.dirs[parent] = true
			i.Disk.LinksCount = 0
		} else if i.Disk.LinksCount > 0 {
			i.Disk.LinksCount--
		}
		parent.Touch(now)
		return errors.Join(i.Store(f.o), parent.Store(f.o))
	}
	if r.Tag == jbd2.FCCreatTag && i.Disk.IsDir() && !i.IsInline() && i.Disk.Size == 0 {
		if err := names.DirInit(i, f.o, parent.Ino()); err != nil {
			return err
		}
	}
	if have != 0 {
		return nil
	}
	if err := names.DirInsert(parent, f.o, name, i.Ino(), i.Disk.Mode); err != nil {
		return err
	}
	switch {
	case i.Disk.IsDir():
		f.dirs[parent], f.dirs[i] = true, true
	case r.Tag == jbd2.FCCreatTag:
		i.Disk.LinksCount = max(i.Disk.LinksCount, 1)
	default:
		i.Disk.LinksCount++
	}
	parent.Touch(now)
	return errors.Join(i.Store(f.o), parent.Store(f.o))
}

// countDirs sets the link count of a directory from what is in it: the records have the count of some directories and
// not of others.
func (f *fastCommits) countDirs(i *volume.Inode) error {
	if i.Disk.LinksCount == 0 {
		return nil
	}
	e, err := names.Entries(i)
	if err != nil {
		return err
	}
	n := 0
	var unknown []uint32
	err = e.Read(0, func(e dir.Entry, _ uint64) bool {
		switch {
		case e.Type == dir.FTDir:
			n++
		case e.Type == dir.FTUnknown:
			unknown = append(unknown, e.Ino)
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, ino := range unknown {
		c, err := f.v.Get(ino)
		if err != nil {
			return err
		}
		if c.Disk.IsDir() {
			n++
		}
		c.Put()
	}
	if n > names.MaxLinks {
		n = 1
	}
	i.Disk.LinksCount = uint16(n)
	return i.Store(f.o)
}
