package names

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// DirEntry is one name of a directory.
type DirEntry struct {
	Name   string
	Ino    uint32
	Type   uint8  // DT_*, 0 when the volume does not record it
	Cookie uint64 // where reading continues after this entry
}

// dirStore is dir.Store for one directory in one operation, nil for reading. The caller holds Mu as dir.Dir requires.
type dirStore struct {
	i *volume.Inode
	o *volume.Op
}

func (s dirStore) Blocks() uint32 { return uint32(s.i.Disk.Size >> s.i.FS.BlockBits) }

func (s dirStore) Get(lblk uint32) (dir.Block, error) {
	b := s.i.DirMap.Get(lblk)
	if b == 0 {
		x, err := contents.At(s.i, lblk)
		if err != nil {
			return nil, err
		}
		if x.Hole() || x.Unwritten {
			return nil, disk.Corrupt(volume.InodeName(s.i.Ino()), "block %d of the directory is a hole", lblk)
		}
		b = x.Pblk
		s.i.DirMap.Note(lblk, b)
	}
	buf, err := s.i.FS.Cache.Get(b)
	if err != nil {
		return nil, err
	}
	return buf, nil
}

func (s dirStore) Change(b dir.Block) { s.o.Handle.Save(b.(*jbd2.Buffer)) }

func (s dirStore) Append() (uint32, dir.Block, error) {
	l := s.Blocks()
	buf, err := contents.AppendMeta(s.i, s.o, l)
	if err != nil {
		return 0, nil, err
	}
	s.i.Disk.Size += uint64(s.i.FS.BlockSize)
	s.i.Changed = true
	return l, buf, nil
}

func (s dirStore) Dirty(b dir.Block) { s.o.Handle.Dirty(b.(*jbd2.Buffer)) }

func (s dirStore) Indexed() bool { return s.i.Disk.Flags&disk.FlIndex != 0 }

// Damaged may be called by several readers at once; the first error is kept.
func (s dirStore) Damaged(err error) { s.i.Damaged.CompareAndSwap(nil, &err) }

func (s dirStore) SetIndexed() {
	s.i.Disk.Flags |= disk.FlIndex
	s.i.Changed = true
}

// layout is how the directory's blocks are read. It does not change while the inode lives; one whose entries are in its
// inode has none yet.
func layout(i *volume.Inode) (*dir.Dir, error) {
	if l := i.Layout.Load(); l != nil {
		return l, nil
	}
	if !i.Disk.IsDir() {
		return nil, volume.ErrNotDir
	}
	l, err := dir.New(i.FS.Super, i.Ino(), &i.Disk)
	if err != nil {
		return nil, err
	}
	i.Layout.Store(l)
	return l, nil
}

// Listing is what both forms of directory can do without changing anything.
type Listing interface {
	Lookup(name string) (ino uint32, ft uint8, err error)
	Empty() (bool, error)
	Read(cookie uint64, fn func(e dir.Entry, next uint64) bool) error
}

// blockEntries is the Listing of a directory in blocks.
type blockEntries struct {
	l *dir.Dir
	s dirStore
}

func (b blockEntries) Lookup(name string) (uint32, uint8, error) { return b.l.Lookup(b.s, name) }

func (b blockEntries) Empty() (bool, error) { return b.l.Empty(b.s) }

func (b blockEntries) Read(cookie uint64, fn func(dir.Entry, uint64) bool) error {
	return b.l.Read(b.s, cookie, fn)
}

// The caller of what follows holds Inode.Mu: shared for lookup and listing, exclusive for the rest.

// Entries is what the directory holds, in blocks or inline.
func Entries(i *volume.Inode) (Listing, error) {
	if i.IsInline() {
		if !i.Disk.IsDir() {
			return nil, volume.ErrNotDir
		}
		n, _, err := inlineDir(i)
		return n, err
	}
	l, err := layout(i)
	return blockEntries{l, dirStore{i, nil}}, err
}

// DirLookup returns the inode number and the kind (dir.FT*) that name has in the directory.
func DirLookup(i *volume.Inode, name string) (ino uint32, ft uint8, err error) {
	if !i.IsInline() {
		l, err := layout(i)
		if err != nil {
			return 0, 0, err
		}
		return l.Lookup(dirStore{i, nil}, name)
	}
	e, err := Entries(i)
	if err != nil {
		return 0, 0, err
	}
	return e.Lookup(name)
}

// DirInit makes the new directory i one that holds "." and "..".
func DirInit(i *volume.Inode, o *volume.Op, parent uint32) error {
	if done, err := inlineDirInit(i, o, parent); done || err != nil {
		return err
	}
	l, err := layout(i)
	if err != nil {
		return err
	}
	return l.Init(dirStore{i, o}, parent)
}

// DirInsert adds a name that the directory does not have.
func DirInsert(i *volume.Inode, o *volume.Op, name string, ino uint32, mode uint16) error {
	if i.IsInline() {
		if done, err := inlineDirInsert(i, o, name, ino, mode); done || err != nil {
			return err
		}
	}
	l, err := layout(i)
	if err != nil {
		return err
	}
	err = l.Add(dirStore{i, o}, name, ino, dir.FTOf(mode))
	if errors.Is(err, dir.ErrFull) {
		err = fmt.Errorf("%w: %w", volume.ErrNoSpace, err) // as the kernel says it
	}
	return err
}

// DirRemove removes a name.
func DirRemove(i *volume.Inode, o *volume.Op, name string) error {
	if i.IsInline() {
		n, c, err := inlineDir(i)
		if err == nil {
			_, err = n.Remove(name)
		}
		if err != nil {
			return err
		}
		return put(c, o, n)
	}
	l, err := layout(i)
	if err != nil {
		return err
	}
	_, err = l.Remove(dirStore{i, o}, name)
	return err
}

func dirReplace(i *volume.Inode, o *volume.Op, name string, ino uint32, mode uint16) error {
	if i.IsInline() {
		n, c, err := inlineDir(i)
		if err == nil {
			_, err = n.Replace(name, ino, dir.FTOf(mode))
		}
		if err != nil {
			return err
		}
		return put(c, o, n)
	}
	l, err := layout(i)
	if err != nil {
		return err
	}
	_, err = l.Replace(dirStore{i, o}, name, ino, dir.FTOf(mode))
	return err
}

func dirSetParent(i *volume.Inode, o *volume.Op, parent uint32) error {
	return dirReplace(i, o, "..", parent, disk.ModeDir)
}

// dirDamage refuses to change a directory in which names are found without its index. Mu is held.
func dirDamage(i *volume.Inode) error {
	if err := i.Damaged.Load(); err != nil {
		return *err
	}
	return nil
}

// noteDamage reports damage of the directory's index to the volume. The operation itself succeeds, for names are found without
// the index. It is deferred like NoteTo.
func noteDamage(i *volume.Inode) {
	if err := i.Damaged.Load(); err != nil {
		_ = i.FS.Note(*err)
	}
}

// dirEmpty is ErrNotEmpty if the directory holds more than "." and "..".
func dirEmpty(i *volume.Inode) error {
	e, err := Entries(i)
	if err != nil {
		return err
	}
	empty, err := e.Empty()
	if err == nil && !empty {
		err = volume.ErrNotEmpty
	}
	return err
}

// ReadDir calls f with the entries from cookie on, 0 for all, until f returns false: then that entry was not taken. f
// must not call into the volume.
func ReadDir(i *volume.Inode, cookie uint64, f func(DirEntry) bool, how ...volume.Reading) (err error) {
	defer i.FS.NoteTo(&err)
	defer noteDamage(i)
	i.Mu.RLock()
	defer i.EndRead(how...)
	if !i.Disk.IsDir() {
		return volume.ErrNotDir
	}
	if i.Disk.LinksCount == 0 {
		return nil // removed while open
	}
	e, err := Entries(i)
	if err != nil {
		return err
	}
	return e.Read(cookie, func(e dir.Entry, next uint64) bool {
		return f(DirEntry{Name: string(e.Name), Ino: e.Ino, Type: dir.DTOf(e.Type), Cookie: next})
	})
}
