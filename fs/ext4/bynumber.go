package ext4

import (
	"fmt"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// ByNumber gives a reference to the file with inode number ino, ErrStale if there is none. Unlike Inode it may be asked for any
// number: who asks has it from a file handle, which may be old or made up. So it proves nothing about the volume, and a slot
// that is no inode is no damage. The caller compares generations.
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
		i = v.blank(ino)
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
	i.mu.RLock()
	named := i.d.LinksCount > 0 && i.d.Mode != 0 && i.d.Flags&disk.FlEAInode == 0
	free := i.d.LinksCount == 0 && i.orphan.kind == 0
	i.mu.RUnlock()
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
	if err == nil || isCorrupt(err) {
		return ErrStale
	}
	return err
}

// nameable says whether an inode of this number may have a name.
func (v *FS) nameable(ino uint32) bool {
	switch ino {
	case disk.InoRoot:
		return true
	case v.sb.JournalInum, v.sb.OrphanFileInum, v.sb.UsrQuotaInum, v.sb.GrpQuotaInum, v.sb.PrjQuotaInum:
		return false
	}
	return ino >= v.sb.FirstIno && v.sb.ValidIno(ino)
}

// slotUsed says whether the inode's place in the inode table holds a file with names: without making it live, and without
// taking what was never written there for an inode.
func (v *FS) slotUsed(ino uint32) (bool, error) {
	if used, err := v.alloc.InodeInUse(ino); err != nil || !used {
		return false, err
	}
	group, block, off := v.sb.InodeLocation(ino)
	buf, err := v.cache.Get(jbd2.Block(v.alloc.InodeTable(group)) + jbd2.Block(block))
	if err != nil {
		return false, fmt.Errorf("inode %d: %w", ino, err)
	}
	defer buf.Put()
	buf.RLock()
	defer buf.RUnlock()
	d, err := v.sb.DecodeInode(ino, buf.Data()[off:off+int(v.sb.InodeSize)])
	return err == nil && d.LinksCount > 0 && d.Mode != 0, err
}

// made lets others find an inode by its number, after the last change that the operation makes to it.
func (i *Inode) made() {
	i.fs.inodes.mu.Lock()
	i.making = false
	i.fs.inodes.mu.Unlock()
}
