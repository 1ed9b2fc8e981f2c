package volume

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// ByNumber gives a reference to the file with inode number ino, ErrStale if there is none. Unlike Inode it takes any number: it
// comes from a file handle, which may be old or made up. So what is found there says nothing about the volume, and a slot that is
// no inode is no damage. The caller compares generations.
//
// A free inode is never made a live one here: its last Put would free it once more.
func (v *FS) ByNumber(ino uint32) (*Inode, error) {
	if !v.nameable(ino) {
		return nil, ErrStale
	}
	if used, err := v.slotUsed(ino); err != nil || !used {
		return nil, staleOr(err)
	}
	t := &v.inodes
	t.mu.Lock()
	i := t.m[ino]
	switch {
	case i == nil:
		i = v.Blank(ino)
		t.m[ino] = i
	case i.making:
		t.mu.Unlock()
		return nil, ErrStale
	}
	i.refs++
	t.mu.Unlock()
	i.once.Do(func() { i.err = i.load() })
	if i.err != nil {
		err := i.err
		i.drop()
		return nil, staleOr(err)
	}
	i.Mu.RLock()
	named := i.Disk.LinksCount > 0 && i.Disk.Mode != 0 && i.Disk.Flags&disk.FlEAInode == 0
	free := i.Disk.LinksCount == 0 && i.orphan.kind == 0
	i.Mu.RUnlock()
	switch {
	case named:
		return i, nil
	case free: // it was freed since slotUsed
		i.drop()
	default:
		i.Put()
	}
	return nil, ErrStale
}

// staleOr is ErrStale for what a number that is no file's can lead to.
func staleOr(err error) error {
	if err == nil || IsCorrupt(err) {
		return ErrStale
	}
	return err
}

// nameable says whether an inode of this number may have a name.
func (v *FS) nameable(ino uint32) bool {
	switch ino {
	case disk.InoRoot:
		return true
	case v.Super.JournalInum, v.Super.OrphanFileInum, v.Super.UsrQuotaInum, v.Super.GrpQuotaInum, v.Super.PrjQuotaInum:
		return false
	}
	return ino >= v.Super.FirstIno && v.Super.ValidIno(ino)
}

// slotUsed says whether the inode's place in the inode table holds a file with names: without making it live, and without
// taking what was never written there for an inode.
func (v *FS) slotUsed(ino uint32) (bool, error) {
	if used, err := v.Alloc.InodeInUse(ino); err != nil || !used {
		return false, err
	}
	group, block, off := v.Super.InodeLocation(ino)
	buf, err := v.Cache.Get(disk.Block(v.Alloc.InodeTable(group)) + disk.Block(block))
	if err != nil {
		return false, fmt.Errorf("inode %d: %w", ino, err)
	}
	defer buf.Put()
	buf.RLock()
	defer buf.RUnlock()
	d, err := v.Super.DecodeInode(ino, buf.Data()[off:off+int(v.Super.InodeSize)])
	return err == nil && d.LinksCount > 0 && d.Mode != 0, err
}

// made lets others find an inode by its number, after the last change that the operation makes to it.
func (i *Inode) made() {
	i.FS.inodes.mu.Lock()
	i.making = false
	i.FS.inodes.mu.Unlock()
}
