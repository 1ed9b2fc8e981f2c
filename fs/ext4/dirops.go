package ext4

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// dirStore is dir.Store for one directory under one handle, nil for reading. mu is held as dir.Dir wants it.
type dirStore struct {
	i *Inode
	h *jbd2.Handle
}

func (s dirStore) Blocks() uint32 { return uint32(s.i.d.Size >> s.i.fs.bits) }

func (s dirStore) Get(lblk uint32) (dir.Block, error) {
	x, err := s.i.tree(nil).Map(lblk, 1)
	if err != nil {
		return nil, err
	}
	if x.Hole() || x.Unwritten {
		return nil, disk.Corrupt(inodeName(s.i.ino), "block %d of the directory is a hole", lblk)
	}
	buf, err := s.i.fs.cache.Get(x.Pblk)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (s dirStore) Append() (uint32, dir.Block, error) {
	l := s.Blocks()
	_, buf, err := s.i.appendMeta(s.h, l)
	if err != nil {
		return 0, nil, err
	}
	s.i.d.Size += uint64(s.i.fs.bs)
	s.i.changed = true
	return l, buf, nil
}

func (s dirStore) Dirty(b dir.Block) { s.h.Dirty(b.(*jbd2.Buffer)) }

func (s dirStore) Indexed() bool { return s.i.d.Flags&disk.FlIndex != 0 }

func (s dirStore) SetIndexed() {
	s.i.d.Flags |= disk.FlIndex
	s.i.changed = true
}

// layout is how the directory's blocks are read. It does not change while the inode lives.
func (i *Inode) layout() (*dir.Dir, error) {
	if l := i.dir.Load(); l != nil {
		return l, nil
	}
	if !i.d.IsDir() {
		return nil, ErrNotDir
	}
	l, err := dir.New(i.fs.sb, i.ino, &i.d)
	if err != nil {
		return nil, err
	}
	i.dir.Store(l)
	return l, nil
}

// The following want mu held: shared for lookup and listing, exclusive for the rest.

func (i *Inode) dirLookup(name string) (ino uint32, ft uint8, err error) {
	l, err := i.layout()
	if err != nil {
		return 0, 0, err
	}
	return l.Lookup(dirStore{i, nil}, name)
}

func (i *Inode) dirInit(h *jbd2.Handle, parent uint32) error {
	l, err := i.layout()
	if err != nil {
		return err
	}
	return l.Init(dirStore{i, h}, parent)
}

func (i *Inode) dirInsert(h *jbd2.Handle, name string, ino uint32, mode uint16) error {
	l, err := i.layout()
	if err != nil {
		return err
	}
	err = l.Add(dirStore{i, h}, name, ino, dir.FTOf(mode))
	if errors.Is(err, dir.ErrFull) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err) // as the kernel says it
	}
	return err
}

func (i *Inode) dirRemove(h *jbd2.Handle, name string) error {
	l, err := i.layout()
	if err != nil {
		return err
	}
	_, err = l.Remove(dirStore{i, h}, name)
	return err
}

func (i *Inode) dirReplace(h *jbd2.Handle, name string, ino uint32, mode uint16) error {
	l, err := i.layout()
	if err != nil {
		return err
	}
	_, err = l.Replace(dirStore{i, h}, name, ino, dir.FTOf(mode))
	return err
}

func (i *Inode) dirSetParent(h *jbd2.Handle, parent uint32) error {
	return i.dirReplace(h, "..", parent, disk.ModeDir)
}

// dirEmpty is ErrNotEmpty if the directory holds more than "." and "..".
func (i *Inode) dirEmpty() error {
	l, err := i.layout()
	if err != nil {
		return err
	}
	empty, err := l.Empty(dirStore{i, nil})
	if err == nil && !empty {
		err = ErrNotEmpty
	}
	return err
}

// ReadDir calls f with the entries from cookie on, 0 for all, until f returns false: then that entry was not taken. f
// must not call into the volume.
func (i *Inode) ReadDir(cookie uint64, f func(DirEntry) bool) (err error) {
	defer i.fs.noteTo(&err)
	defer i.accessed()
	i.mu.RLock()
	defer i.mu.RUnlock()
	if !i.d.IsDir() {
		return ErrNotDir
	}
	if i.d.LinksCount == 0 {
		return nil // removed while open
	}
	l, err := i.layout()
	if err != nil {
		return err
	}
	return l.Read(dirStore{i, nil}, cookie, func(e dir.Entry, next uint64) bool {
		return f(DirEntry{Name: string(e.Name), Ino: e.Ino, Type: dir.DTOf(e.Type), Cookie: next})
	})
}
