package volume

import (
	"sync"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// orphans are the inodes that must be finished at the next mount if this one does not get to it: files without links
// that are still open, and files being truncated. They are recorded in the orphan file where the volume has one with
// room ([layout] Orphan file), else on the list that begins at s_last_orphan and goes on in i_dtime.
type orphans struct {
	mu   sync.Mutex
	list []*Inode // protected by mu: the list on the volume, its head last
	file *orphanFile
	n    int // protected by mu: inodes on the list and in the file
}

// orphanPlace is where an inode is recorded. It is small, for each inode has one, and there is one for each free slot of the orphan file: half a
// million where mkfs has made the largest.
type orphanPlace struct {
	block uint32 // of the orphan file
	slot  uint16 // a block of 64 KiB, the largest, has 16,383
	kind  uint8  // 0: nowhere
}

const (
	orphanOnList = 1
	orphanInFile = 2
)

// orphanFile is the special inode s_orphan_file_inum.
type orphanFile struct {
	seed   uint32
	blocks []disk.Block
	free   []orphanPlace // protected by orphans.mu
}

// IsOrphan says whether the inode is recorded as an orphan. Mu is held.
func (i *Inode) IsOrphan() bool { return i.orphan.kind != 0 }

func (o *orphans) any() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.n > 0
}

// AddOrphan records i, whose Mu is held, if it is not yet.
func (v *FS) AddOrphan(op *Op, i *Inode) error {
	o := &v.orphans
	o.mu.Lock()
	defer o.mu.Unlock()
	if i.orphan.kind != 0 {
		return nil
	}
	if o.file != nil && len(o.file.free) > 0 {
		p := o.file.free[len(o.file.free)-1]
		err := v.putOrphan(op.Handle, p, i.ino, func() {
			i.orphan = orphanPlace{}
			o.file.free = append(o.file.free, p)
			o.n--
		})
		if err != nil {
			return err
		}
		o.file.free = o.file.free[:len(o.file.free)-1]
		i.orphan = p
		o.n++
		return nil
	}
	i.nextOrphan.Store(o.head())
	if err := i.Store(op); err != nil {
		i.nextOrphan.Store(-1)
		return err
	}
	v.pushOrphan(op.Handle, i)
	h := op.Handle
	h.OnUndo(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		// An inode put before it since then belongs to the same transaction, so it is in memory.
		_ = v.unlistOrphan(h, i)
	})
	return nil
}

// head is the inode that begins the list, 0 if there is none. orphans.mu is held.
func (o *orphans) head() int64 {
	if k := len(o.list) - 1; k >= 0 {
		return int64(o.list[k].ino)
	}
	return 0
}

// pushOrphan makes i, which says what follows it, the head of the list. orphans.mu is held.
func (v *FS) pushOrphan(h *jbd2.Handle, i *Inode) {
	v.updateSuper(h, func(sb *disk.Superblock) { sb.LastOrphan = i.ino })
	o := &v.orphans
	o.list = append(o.list, i)
	i.orphan = orphanPlace{kind: orphanOnList}
	o.n++
}

// unlistOrphan takes i off the list. orphans.mu is held; the caller stores i.
func (v *FS) unlistOrphan(h *jbd2.Handle, i *Inode) error {
	o := &v.orphans
	next := i.nextOrphan.Load()
	at := len(o.list) - 1
	for at >= 0 && o.list[at] != i {
		at--
	}
	if at == len(o.list)-1 {
		v.updateSuper(h, func(sb *disk.Superblock) { sb.LastOrphan = uint32(next) })
	} else if err := o.list[at+1].relink(h, next); err != nil {
		return err
	}
	o.list = append(o.list[:at], o.list[at+1:]...)
	i.nextOrphan.Store(-1)
	i.orphan = orphanPlace{}
	o.n--
	return nil
}

// RemoveOrphan forgets i, whose Mu is held; the caller stores it.
func (v *FS) RemoveOrphan(op *Op, i *Inode) error {
	o := &v.orphans
	o.mu.Lock()
	defer o.mu.Unlock()
	switch p := i.orphan; p.kind {
	case orphanInFile:
		err := v.putOrphan(op.Handle, p, 0, func() {
			i.orphan = p
			o.n++
		})
		if err != nil {
			return err
		}
		i.orphan = orphanPlace{}
		o.n--
		op.OnDone(func() { // until then no other inode gets the place
			o.mu.Lock()
			o.file.free = append(o.file.free, p)
			o.mu.Unlock()
		})
	case orphanOnList:
		buf, slot, err := i.Slot()
		if err != nil {
			return err
		}
		defer buf.Put()
		if err := v.unlistOrphan(op.Handle, i); err != nil {
			return err
		}
		i.Disk.Dtime = 0
		h := op.Handle
		h.OnUndo(func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			i.nextOrphan.Store(o.head())
			buf.Lock()
			i.linkOrphan(slot)
			h.DirtyShared(buf)
			buf.Unlock()
			v.pushOrphan(h, i)
		}, buf)
	}
	return nil
}

// relink changes what follows an inode on the list whose Mu is not held: only its slot, not what Mu protects.
func (i *Inode) relink(h *jbd2.Handle, next int64) error {
	buf, slot, err := i.Slot()
	if err != nil {
		return err
	}
	defer buf.Put()
	i.nextOrphan.Store(next)
	buf.Lock()
	defer buf.Unlock()
	i.linkOrphan(slot)
	h.DirtyShared(buf)
	return nil
}

// linkOrphan puts into the inode's slot what follows it on the list. The buffer's lock is held.
func (i *Inode) linkOrphan(slot []byte) {
	d, err := i.FS.Super.DecodeInode(i.ino, slot)
	if err != nil {
		return // it was decoded when it was loaded, and every change since was encoded
	}
	d.Dtime = uint32(i.nextOrphan.Load())
	i.FS.Super.EncodeInode(i.ino, &d, slot)
}

// putOrphan sets a place of the orphan file. undone is called with orphans.mu held when that is undone.
func (v *FS) putOrphan(h *jbd2.Handle, p orphanPlace, ino uint32, undone func()) error {
	f := v.orphans.file
	buf, err := v.Cache.Get(f.blocks[p.block])
	if err != nil {
		return err
	}
	defer buf.Put()
	put := func(ino uint32) {
		buf.Lock()
		disk.PutOrphan(buf.Data(), int(p.slot), ino)
		v.Super.SetOrphanTail(f.seed, uint64(f.blocks[p.block]), buf.Data())
		h.DirtyShared(buf)
		buf.Unlock()
	}
	old := disk.GetOrphan(buf.Data(), int(p.slot))
	put(ino)
	h.OnUndo(func() {
		v.orphans.mu.Lock()
		defer v.orphans.mu.Unlock()
		put(old)
		undone()
	}, buf)
	return nil
}
