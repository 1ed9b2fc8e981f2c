package volume

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/dir"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/extent"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// Inode is a live file. There is one per inode number, shared by all holders of a reference.
type Inode struct {
	FS   *FS
	ino  uint32
	once sync.Once // load
	err  error     // of load

	refs int  // protected by inodeTable.mu
	dead bool // protected by inodeTable.mu: freed on the volume, no longer in the table

	making bool // protected by inodeTable.mu: the operation that makes it has not ended, see made

	// Mu protects what follows, the file's contents and its slot of the inode table. It is taken before a handle is
	// begun, never under one.
	Mu      sync.RWMutex
	Disk    disk.Inode
	TID     jbd2.TID // last transaction that changed the inode
	DataTID jbd2.TID // last one that changed more of it than times: what fdatasync waits for
	Changed bool     // Disk differs from the slot: Store is due before the handle ends

	CleanEnd bool // the last block is zero past the size, see contents
	Shortens bool // the size was set, but blocks past it are still mapped, see contents

	Layout     atomic.Pointer[dir.Dir] // how a directory's blocks are read; nil until that is known
	DirMap     DirMap                  // where a directory's blocks are, as far as that is known
	Damaged    atomic.Pointer[error]   // what is wrong with the directory's index, if that was met
	nextOrphan atomic.Int64            // i_dtime while on the orphan list: the next one on it; -1 when not on it
	orphan     orphanPlace             // protected by orphans.mu
	Window     alloc.Window            // blocks kept for when the file grows
	AccessTime atomic.Uint64           // of a read that Disk does not show yet, Bits of a Timestamp; 0 for none. Set under Mu, shared
}

// Slot is where the inode lies in the inode table.
func (i *Inode) Slot() (*jbd2.Buffer, []byte, error) {
	buf, off, err := i.slotAt()
	if err != nil {
		return nil, nil, err
	}
	end := off + int(i.FS.Super.InodeSize)
	return buf, buf.Data()[off:end:end], nil
}

// slotAt is Slot that says where in the block the slot begins.
func (i *Inode) slotAt() (*jbd2.Buffer, int, error) {
	group, block, off := i.FS.Super.InodeLocation(i.ino)
	buf, err := i.FS.Cache.Get(disk.Block(i.FS.Alloc.InodeTable(group)) + disk.Block(block))
	return buf, off, err
}

func (i *Inode) load() error {
	buf, slot, err := i.Slot()
	if err != nil {
		return &inodeError{ino: i.ino, err: err}
	}
	defer buf.Put()
	buf.RLock()
	defer buf.RUnlock()
	d, err := i.FS.Super.DecodeInode(i.ino, slot)
	if err != nil {
		return err
	}
	if err := i.FS.Super.VerifyInode(i.ino, &d, slot); err != nil {
		return err
	}
	if d.Mode != 0 {
		if err := i.FS.CheckInode(i.ino, &d); err != nil {
			return err
		}
	}
	i.Disk = d
	// It may have been changed, dropped and loaded again before the change was committed: an fsync must wait for that.
	i.NoteTID(i.FS.Journal.Latest())
	if d.Mode != 0 && d.LinksCount > 0 && i.HasBlocks() {
		return i.TreeIn(nil).CheckRoot() // with a root that cannot be, nothing could be done to the file but harm
	}
	return nil
}

// CheckInode refuses members that the rest of the package could not work with.
func (v *FS) CheckInode(ino uint32, d *disk.Inode) error {
	what := InodeName(ino)
	switch d.Mode & disk.ModeFmt {
	case disk.ModeFifo, disk.ModeChar, disk.ModeDir, disk.ModeBlock, disk.ModeReg, disk.ModeLink, disk.ModeSocket:
	default:
		if ino >= v.Super.FirstIno || ino == disk.InoRoot {
			return disk.Corrupt(what, "mode %#o is of no kind of file", d.Mode)
		}
	}
	if d.Size > 1<<62 {
		return disk.Corrupt(what, "size %d is impossible", d.Size)
	}
	if d.FileACL != 0 && !v.Super.ValidBlock(d.FileACL) {
		return disk.Corrupt(what, "extended attribute block %d is outside the volume", d.FileACL)
	}
	if d.Flags&disk.FlInlineData != 0 && !v.Super.FeatureIncompat.Has(disk.IncompatInlineData) {
		return disk.Corrupt(what, "has inline data, which the volume does not")
	}
	if d.IsDir() && d.Size&uint64(v.BlockSize-1) != 0 && d.Flags&disk.FlInlineData == 0 {
		return disk.Corrupt(what, "directory size %d is no multiple of the block size", d.Size)
	}
	if d.IsDir() && d.Size>>v.BlockBits > extent.MaxBlock {
		return disk.Corrupt(what, "directory of %d bytes, more than a file can have", d.Size)
	}
	if d.IsLink() && d.Flags&(disk.FlInlineData) == 0 && (d.Size == 0 || d.Size > uint64(v.BlockSize)) {
		return disk.Corrupt(what, "symbolic link of %d bytes", d.Size)
	}
	return nil
}

// Store writes the inode into its slot. Mu is held for writing.
func (i *Inode) Store(o *Op) error {
	err := o.ChangeSlot(i, func(slot []byte) {
		i.takeAccess()
		if n := i.nextOrphan.Load(); n >= 0 {
			i.Disk.Dtime = uint32(n)
		}
		i.Disk.RoundTimes()
		i.FS.Super.EncodeInode(i.ino, &i.Disk, slot)
	})
	if err != nil {
		return err
	}
	if i.Disk.Size > math.MaxInt32 && i.Disk.IsReg() {
		i.FS.noteLargeFile(o)
	}
	i.Changed = false
	i.NoteTID(o.Handle.TID())
	return nil
}

// NoteTID notes that transaction t has changed the inode, for an fsync to wait for.
func (i *Inode) NoteTID(t jbd2.TID) { i.TID, i.DataTID = t, t }

// Ino is the inode number.
func (i *Inode) Ino() uint32 { return i.ino }

// Generation tells apart files that had the same number one after the other.
func (i *Inode) Generation() uint32 {
	i.Mu.RLock()
	defer i.Mu.RUnlock()
	return i.Disk.Generation
}

// ReadOwn reads a block of metadata that is the inode's alone: a node of its tree, its attributes, a symbolic link's target.
func (i *Inode) ReadOwn(b disk.Block) (*jbd2.Buffer, error) {
	buf, err := i.FS.Cache.Get(b)
	if err != nil {
		return nil, &inodeError{i.ino, true, err}
	}
	return buf, nil
}

// inodeError says of which inode metadata could not be had: what is its own, or the slot.
type inodeError struct {
	ino uint32
	own bool
	err error
}

func (e *inodeError) Error() string { return fmt.Sprintf("%s: %v", InodeName(e.ino), e.err) }
func (e *inodeError) Unwrap() error { return e.err }

const inodeName = "inode %d"

// InodeName is what errors call an inode.
func InodeName(ino uint32) string { return fmt.Sprintf(inodeName, ino) }

// inodeNamed is the inode that an error calls so; 0: it is not what the error is about.
func inodeNamed(name string) (ino uint32) {
	_, _ = fmt.Sscanf(name, inodeName, &ino)
	return ino
}
