package ext4

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// createCredits: inode bitmap, its descriptor, inode, parent, directory block and index path, one new block with bitmap and
// descriptor, orphan, superblock.
const createCredits = 32

// newInode allocates an inode for the directory i and fills in what is the same for every kind. Nobody else sees it
// before it is stored and has a name, so its mu is not taken.
func (i *Inode) newInode(o *op, mode uint16, uid, gid uint32) (*Inode, error) {
	isDir := mode&disk.ModeFmt == disk.ModeDir
	if i.d.Mode&modeSetGID != 0 {
		gid = i.d.GID
		if isDir {
			mode |= modeSetGID
		}
	}
	v := i.fs
	ino, err := v.alloc.AllocInode(o.h, i.Ino(), isDir)
	if errors.Is(err, alloc.ErrNoInodes) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	if err != nil {
		return nil, err
	}
	now := disk.TimestampOf(time.Now())
	d := disk.Inode{
		Mode: mode, UID: uid, GID: gid, LinksCount: 1,
		Atime: now, Ctime: now, Mtime: now, Crtime: now,
		Flags:      disk.InheritedFlags(mode, i.d.Flags),
		Generation: rand.Uint32(),
	}
	if v.sb.InodeSize > disk.InodeSizeRev0 {
		d.ExtraIsize = min(max(v.sb.WantExtraIsize, disk.ExtraIsizeAll), v.sb.InodeSize-disk.InodeSizeRev0)
	}
	if d.HasProjid() && i.d.Flags&disk.FlProjinherit != 0 {
		d.Projid = i.d.Projid
	}
	n, err := o.newLive(ino, d)
	if err == nil && (isDir || n.d.IsReg() || n.d.IsLink()) {
		n.formatTree()
	}
	return n, err
}

// S_ISGID and the like, as in stat(2).
const (
	modeSetGID = 0o2000
	modePerm   = 0o7777
)
