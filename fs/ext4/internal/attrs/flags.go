package attrs

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/internal/volume"
)

// Flags that chattr(1) sends back and that cannot be changed here: they say how a file's bytes are kept. A call that
// tries fails, but as in the kernel a change of lateFlags only after the other flags are changed: so FS_IOC_SETFLAGS of 0
// always makes a file mutable again.
const (
	fixedFlags = disk.FlDAX | disk.FlEofblocks | disk.FlCasefold
	lateFlags  = disk.FlExtents | disk.FlJournalData
)

// SetFlags sets the flags that users may set to those in flags, EXT4_*_FL, as FS_IOC_SETFLAGS of ioctl(2). The
// caller checks that only the privileged change immutable and append-only.
func SetFlags(i *volume.Inode, flags uint32) error { return setFlags(i, flags, nil) }

// SetFlagsAndProject is SetFlags that also moves the file to a project, as FS_IOC_FSSETXATTR. Volumes without the
// feature have project 0 only.
func SetFlagsAndProject(i *volume.Inode, flags, projid uint32) error {
	return setFlags(i, flags, &projid)
}

func setFlags(i *volume.Inode, flags uint32, projid *uint32) error {
	return i.FS.Change(nil, func(o *volume.Op) error {
		o.Lock(i)
		return setFlagsLocked(i, o, flags, projid)
	})
}

func setFlagsLocked(i *volume.Inode, o *volume.Op, flags uint32, projid *uint32) error {
	old := i.Disk.Flags & disk.FlUserModify
	change := (flags ^ old) & disk.FlUserModify
	moves := projid != nil && *projid != i.Disk.Projid
	switch {
	case !i.FS.Writable():
		return volume.ErrReadOnly
	case flags&^disk.FlUserVisible != 0, change&fixedFlags != 0:
		return fmt.Errorf("inode flags %#x: %w", flags, volume.ErrNotSup)
	case i.Disk.IsReg() && change&flags&(disk.FlDirsync|disk.FlTopdir|disk.FlProjinherit) != 0,
		!i.Disk.IsReg() && !i.Disk.IsDir() && change&flags&^(disk.FlNodump|disk.FlNoatime) != 0:
		return fmt.Errorf("inode flags %#x on this kind of file: %w", flags, volume.ErrNotSup)
	case i.Disk.Flags&flags&disk.FlImmutable != 0 && (change != 0 || moves):
		return volume.ErrPerm // a file that stays immutable takes no other change
	case moves && !(i.FS.Super.FeatureROCompat.Has(disk.ROCompatProject) && i.Disk.HasProjid()):
		return fmt.Errorf("project %d: the volume or the inode has no room for one: %w", *projid, volume.ErrNotSup)
	}
	err := o.Do(2, func() error {
		i.Disk.Flags ^= change &^ lateFlags
		if moves {
			i.Disk.Projid = *projid
		}
		i.Stamp(disk.TimestampOf(time.Now()))
		return i.Store(o)
	})
	if err == nil && change&lateFlags != 0 {
		return fmt.Errorf("inode flags %#x: %w", flags, volume.ErrNotSup)
	}
	return err
}
