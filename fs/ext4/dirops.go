package ext4

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// dirStore is dir.Store for one directory in one operation, nil for reading. mu is held as dir.Dir wants it.
type dirStore struct {
	i *Inode
	o *op
}

func (s dirStore) Blocks() uint32 { return uint32(s.i.d.Size >> s.i.fs.bits) }

func (s dirStore) Get(lblk uint32) (dir.Block, error) {
	x, err := s.i.tree(nil).Map(lblk, 1)
	if err != nil {
		return nil, err
	}
	if x.Hole() || x.Unwritten {
		return nil, disk.Corrupt(inodeName(s.i.Ino()), "block %d of the directory is a hole", lblk)
	}
	buf, err := s.i.fs.cache.Get(x.Pblk)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (s dirStore) Change(b dir.Block) { s.o.h.Save(b.(*jbd2.Buffer)) }

func (s dirStore) Append() (uint32, dir.Block, error) {
	l := s.Blocks()
	buf, err := s.i.appendMeta(s.o, l)
	if err != nil {
		return 0, nil, err
	}
	s.i.d.Size += uint64(s.i.fs.bs)
	s.i.changed = true
	return l, buf, nil
}

func (s dirStore) Dirty(b dir.Block) { s.o.h.Dirty(b.(*jbd2.Buffer)) }

func (s dirStore) Indexed() bool { return s.i.d.Flags&disk.FlIndex != 0 }

// Damaged may be called by several readers at once: the first one's word stands.
func (s dirStore) Damaged(err error) { s.i.damaged.CompareAndSwap(nil, &err) }

func (s dirStore) SetIndexed() {
	s.i.d.Flags |= disk.FlIndex
	s.i.changed = true
}

// layout is how the directory's blocks are read. It does not change while the inode lives; one whose entries are in its
// inode has none yet.
func (i *Inode) layout() (*dir.Dir, error) {
	if l := i.dir.Load(); l != nil {
		return l, nil
	}
	if !i.d.IsDir() {
		return nil, ErrNotDir
	}
	l, err := dir.New(i.fs.sb, i.Ino(), &i.d)
	if err != nil {
		return nil, err
	}
	i.dir.Store(l)
	return l, nil
}

// entries is what both forms of directory can do without changing anything.
type entries interface {
	Lookup(name string) (ino uint32, ft uint8, err error)
	Empty() (bool, error)
	Read(cookie uint64, fn func(e dir.Entry, next uint64) bool) error
}

// blockEntries is entries of a directory in blocks.
type blockEntries struct {
	l *dir.Dir
	s dirStore
}

func (b blockEntries) Lookup(name string) (uint32, uint8, error) { return b.l.Lookup(b.s, name) }
func (b blockEntries) Empty() (bool, error)                      { return b.l.Empty(b.s) }
func (b blockEntries) Read(cookie uint64, fn func(dir.Entry, uint64) bool) error {
	return b.l.Read(b.s, cookie, fn)
}

// The following want mu held: shared for lookup and listing, exclusive for the rest.

func (i *Inode) entries() (entries, error) {
	if i.inline() {
		if !i.d.IsDir() {
			return nil, ErrNotDir
		}
		n, _, err := i.inlineDir()
		return n, err
	}
	l, err := i.layout()
	return blockEntries{l, dirStore{i, nil}}, err
}

func (i *Inode) dirLookup(name string) (ino uint32, ft uint8, err error) {
	e, err := i.entries()
	if err != nil {
		return 0, 0, err
	}
	return e.Lookup(name)
}

func (i *Inode) dirInit(o *op, parent uint32) error {
	if done, err := i.inlineDirInit(o, parent); done || err != nil {
		return err
	}
	l, err := i.layout()
	if err != nil {
		return err
	}
	return l.Init(dirStore{i, o}, parent)
}

func (i *Inode) dirInsert(o *op, name string, ino uint32, mode uint16) error {
	if i.inline() {
		if done, err := i.inlineDirInsert(o, name, ino, mode); done || err != nil {
			return err
		}
	}
	l, err := i.layout()
	if err != nil {
		return err
	}
	err = l.Add(dirStore{i, o}, name, ino, dir.FTOf(mode))
	if errors.Is(err, dir.ErrFull) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err) // as the kernel says it
	}
	return err
}

func (i *Inode) dirRemove(o *op, name string) error {
	if i.inline() {
		n, c, err := i.inlineDir()
		if err == nil {
			_, err = n.Remove(name)
		}
		if err != nil {
			return err
		}
		return c.put(o, n)
	}
	l, err := i.layout()
	if err != nil {
		return err
	}
	_, err = l.Remove(dirStore{i, o}, name)
	return err
}

func (i *Inode) dirReplace(o *op, name string, ino uint32, mode uint16) error {
	if i.inline() {
		n, c, err := i.inlineDir()
		if err == nil {
			_, err = n.Replace(name, ino, dir.FTOf(mode))
		}
		if err != nil {
			return err
		}
		return c.put(o, n)
	}
	l, err := i.layout()
	if err != nil {
		return err
	}
	_, err = l.Replace(dirStore{i, o}, name, ino, dir.FTOf(mode))
	return err
}

func (i *Inode) dirSetParent(o *op, parent uint32) error {
	return i.dirReplace(o, "..", parent, disk.ModeDir)
}

// dirDamage refuses to change a directory in which names are found without its index. mu is held.
func (i *Inode) dirDamage() error {
	if err := i.damaged.Load(); err != nil {
		return *err
	}
	return nil
}

// noteDamage has the volume know of an index that names are found without, though nobody is told of an error. It is
// deferred like noteTo.
func (i *Inode) noteDamage() {
	if err := i.damaged.Load(); err != nil {
		_ = i.fs.note(*err)
	}
}

// dirEmpty is ErrNotEmpty if the directory holds more than "." and "..".
func (i *Inode) dirEmpty() error {
	e, err := i.entries()
	if err != nil {
		return err
	}
	empty, err := e.Empty()
	if err == nil && !empty {
		err = ErrNotEmpty
	}
	return err
}

// ReadDir calls f with the entries from cookie on, 0 for all, until f returns false: then that entry was not taken. f
// must not call into the volume.
func (i *Inode) ReadDir(cookie uint64, f func(DirEntry) bool) (err error) {
	defer i.fs.noteTo(&err)
	defer i.noteDamage()
	i.mu.RLock()
	defer i.endRead()
	if !i.d.IsDir() {
		return ErrNotDir
	}
	if i.d.LinksCount == 0 {
		return nil // removed while open
	}
	e, err := i.entries()
	if err != nil {
		return err
	}
	return e.Read(cookie, func(e dir.Entry, next uint64) bool {
		return f(DirEntry{Name: string(e.Name), Ino: e.Ino, Type: dir.DTOf(e.Type), Cookie: next})
	})
}

// DirEntry is one name of a directory.
type DirEntry struct {
	Name   string
	Ino    uint32
	Type   uint8  // DT_*, 0 when the volume does not record it
	Cookie uint64 // where reading continues after this entry
}
