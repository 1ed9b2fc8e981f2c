package attrs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/alloc"
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/contents"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// CreateCredits is how many blocks making a file dirties at most: inode bitmap, its descriptor, inode, parent, directory block and
// index path, one new block with bitmap and descriptor, orphan, superblock.
const CreateCredits = 32

// New allocates an inode for the directory i and fills in what is the same for every kind. No other operation sees it before it
// is stored and has a name, so its Mu is not taken.
func New(i *volume.Inode, o *volume.Op, mode uint16, uid, gid uint32) (*volume.Inode, error) {
	isDir := mode&disk.ModeFmt == disk.ModeDir
	if i.Disk.Mode&modeSetGID != 0 {
		gid = i.Disk.GID
		if isDir {
			mode |= modeSetGID
		}
	}
	v := i.FS
	ino, err := v.Alloc.AllocInode(o.Handle, i.Ino(), isDir)
	if errors.Is(err, alloc.ErrNoInodes) {
		err = fmt.Errorf("%w: %w", volume.ErrNoSpace, err)
	}
	if err != nil {
		return nil, err
	}
	now := disk.TimestampOf(time.Now())
	d := disk.Inode{
		Mode: mode, UID: uid, GID: gid, LinksCount: 1,
		Atime: now, Ctime: now, Mtime: now, Crtime: now,
		Flags:      disk.InheritedFlags(mode, i.Disk.Flags),
		Generation: rand.Uint32(),
	}
	if v.Super.InodeSize > disk.InodeSizeRev0 {
		d.ExtraIsize = min(max(v.Super.WantExtraIsize, disk.ExtraIsizeAll), v.Super.InodeSize-disk.InodeSizeRev0)
	}
	if d.HasProjid() && i.Disk.Flags&disk.FlProjinherit != 0 {
		d.Projid = i.Disk.Projid
	}
	n, err := o.NewLive(ino, d)
	if err == nil && (isDir || n.Disk.IsReg() || n.Disk.IsLink()) {
		contents.FormatTree(n)
	}
	return n, err
}

// S_ISGID and the like, as in stat(2).
const (
	modeSetGID = 0o2000
	ModePerm   = 0o7777
)
