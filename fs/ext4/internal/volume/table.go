package volume

import (
	"sync"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// inodeTable is all live inodes.
type inodeTable struct {
	mu sync.Mutex
	m  map[uint32]*Inode
}

// enter puts a new inode into the table, in the place of one that was asked for while the number was free.
func (t *inodeTable) enter(i *Inode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.m[i.ino]; old != nil {
		old.dead = true
	}
	t.m[i.ino] = i
	i.dead = false
}

// remove takes an inode out of the table that is free on the volume.
func (t *inodeTable) remove(i *Inode) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[i.ino] == i {
		delete(t.m, i.ino)
	}
	i.dead = true
}

// Forget takes an inode that the operation frees out of the table.
func (o *Op) Forget(i *Inode) {
	t := &o.FS.inodes
	t.remove(i)
	o.Handle.OnUndo(func() { t.enter(i) })
}

// NewLive makes inode ino, which the operation has allocated, a live one with the members d. The slot is cleared of what an
// earlier inode left there; the caller stores the new one.
func (o *Op) NewLive(ino uint32, d disk.Inode) (*Inode, error) {
	v := o.FS
	n := v.unread(ino)
	n.making, n.Disk = true, d
	if err := o.ChangeSlot(n, func(slot []byte) { clear(slot) }); err != nil {
		return nil, err
	}
	v.inodes.enter(n)
	o.Handle.OnUndo(func() { v.inodes.remove(n) })
	o.OnDone(n.made)
	return n, nil
}

// EnterUnread makes inode ino live without a look at its slot, which the caller writes.
func (v *FS) EnterUnread(ino uint32) *Inode {
	i := v.unread(ino)
	v.inodes.enter(i)
	return i
}

// unread is a blank inode with one reference that has nothing to load.
func (v *FS) unread(ino uint32) *Inode {
	i := v.Blank(ino)
	i.once.Do(func() {})
	i.refs = 1
	return i
}

// Inode gives a reference to inode ino, which must be in use.
func (v *FS) Inode(ino uint32) (_ *Inode, err error) {
	defer v.NoteTo(&err)
	return v.Get(ino)
}

// Blank is inode ino with nothing read, outside of the table.
func (v *FS) Blank(ino uint32) *Inode {
	i := &Inode{FS: v, ino: ino}
	i.nextOrphan.Store(-1)
	return i
}

// Root gives a reference to the root directory.
func (v *FS) Root() (*Inode, error) { return v.Inode(disk.InoRoot) }

// Get is Inode that leaves damage for its caller to note.
func (v *FS) Get(ino uint32) (*Inode, error) {
	if !v.Super.ValidIno(ino) {
		return nil, disk.Corrupt(InodeName(ino), "number is past the last inode %d", v.Super.InodesCount)
	}
	v.inodes.mu.Lock()
	i := v.inodes.m[ino]
	if i == nil {
		i = v.Blank(ino)
		v.inodes.m[ino] = i
	}
	i.refs++
	v.inodes.mu.Unlock()
	i.once.Do(func() { i.err = i.load() })
	if i.err != nil {
		err := i.err
		i.drop()
		return nil, err
	}
	return i, nil
}

// Linked is Get for an inode that a directory names: it must be one that a name can have.
func (v *FS) Linked(ino uint32) (*Inode, error) {
	if ino != disk.InoRoot && ino < v.Super.FirstIno {
		return nil, disk.Corrupt(InodeName(ino), "a directory names this special inode")
	}
	i, err := v.Get(ino)
	if err != nil {
		return nil, err
	}
	if !i.Mu.TryRLock() {
		return i, nil // an operation changes it, so it was checked before. That may wait for a commit; a lookup does not
	}
	links, mode, flags := i.Disk.LinksCount, i.Disk.Mode, i.Disk.Flags
	i.Mu.RUnlock()
	if links == 0 || mode == 0 {
		i.Put()
		return nil, disk.Corrupt(InodeName(ino), "a directory names it, but it is deleted")
	}
	if flags&disk.FlEAInode != 0 {
		i.Put()
		return nil, disk.Corrupt(InodeName(ino), "a directory names it, but it holds the value of an attribute")
	}
	return i, nil
}
