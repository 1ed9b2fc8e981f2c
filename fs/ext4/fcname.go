package ext4

import (
	"errors"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// name makes or removes a name. It may have been made or removed already.
func (f *fastCommits) name(r jbd2.FCName) error {
	name := string(r.Name)
	if err := checkName(name); err != nil {
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
	if !parent.d.IsDir() || parent == i {
		return disk.Corrupt("fast commits", "name %q in inode %d, which is no directory for it", name, parent.Ino())
	}
	have, _, err := parent.dirLookup(name)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	now := time.Now()
	if r.Tag == jbd2.FCUnlinkTag {
		if have != i.Ino() {
			return nil
		}
		if err := parent.dirRemove(f.o, name); err != nil {
			return err
		}
		if i.d.IsDir() {
			f.dirs[parent] = true
			i.d.LinksCount = 0
		} else if i.d.LinksCount > 0 {
			i.d.LinksCount--
		}
		parent.touch(now)
		return errors.Join(i.store(f.o), parent.store(f.o))
	}
	if r.Tag == jbd2.FCCreatTag && i.d.IsDir() && !i.inline() && i.d.Size == 0 {
		if err := i.dirInit(f.o, parent.Ino()); err != nil {
			return err
		}
	}
	if have != 0 {
		return nil
	}
	if err := parent.dirInsert(f.o, name, i.Ino(), i.d.Mode); err != nil {
		return err
	}
	switch {
	case i.d.IsDir():
		f.dirs[parent], f.dirs[i] = true, true
	case r.Tag == jbd2.FCCreatTag:
		i.d.LinksCount = max(i.d.LinksCount, 1)
	default:
		i.d.LinksCount++
	}
	parent.touch(now)
	return errors.Join(i.store(f.o), parent.store(f.o))
}

// countDirs sets the link count of a directory from what is in it: the records have the count of some directories and
// not of others.
func (f *fastCommits) countDirs(i *Inode) error {
	if i.d.LinksCount == 0 {
		return nil
	}
	e, err := i.entries()
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
		c, err := f.v.get(ino)
		if err != nil {
			return err
		}
		if c.d.IsDir() {
			n++
		}
		c.Put()
	}
	if n > maxLinks {
		n = 1
	}
	i.d.LinksCount = uint16(n)
	return i.store(f.o)
}
