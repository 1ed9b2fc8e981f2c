package ext4

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/fs/ext4/disk"
)

// Flags that chattr(1) sends back and that cannot be changed here: they say how a file's bytes are kept. A call that
// tries fails, but as in the kernel a change of lateFlags only after the other flags are changed: so FS_IOC_SETFLAGS of 0
// always makes a file mutable again.
const (
	fixedFlags = disk.FlDAX | disk.FlEofblocks | disk.FlCasefold
	lateFlags  = disk.FlExtents | disk.FlJournalData
)

// SetFlags sets the flags that users may set to those in flags, EXT4_*_FL, as FS_IOC_SETFLAGS of ioctl(2). That only the
// privileged may change immutable and append-only is for the caller to see to.
func (i *Inode) SetFlags(flags uint32) error { return i.setFlags(flags, nil) }

// SetFlagsAndProject is SetFlags that also moves the file to a project, as FS_IOC_FSSETXATTR. Volumes without the
// feature have project 0 only.
func (i *Inode) SetFlagsAndProject(flags, projid uint32) error { return i.setFlags(flags, &projid) }

func (i *Inode) setFlags(flags uint32, projid *uint32) error {
	return i.fs.change(nil, func(o *op) error {
		o.lock(i)
		return i.setFlagsLocked(o, flags, projid)
	})
}

func (i *Inode) setFlagsLocked(o *op, flags uint32, projid *uint32) error {
	old := i.d.Flags & disk.FlUserModify
	change := (flags ^ old) & disk.FlUserModify
	moves := projid != nil && *projid != i.d.Projid
	switch {
	case !i.fs.writable():
		return ErrReadOnly
	case flags&^disk.FlUserVisible != 0, change&fixedFlags != 0:
		return fmt.Errorf("inode flags %#x: %w", flags, ErrNotSup)
	case i.d.IsReg() && change&flags&(disk.FlDirsync|disk.FlTopdir|disk.FlProjinherit) != 0,
		!i.d.IsReg() && !i.d.IsDir() && change&flags&^(disk.FlNodump|disk.FlNoatime) != 0:
		return fmt.Errorf("inode flags %#x on this kind of file: %w", flags, ErrNotSup)
	case i.d.Flags&flags&disk.FlImmutable != 0 && (change != 0 || moves):
		return ErrPerm // immutable it was and is to stay
	case moves && !(i.fs.sb.FeatureROCompat.Has(disk.ROCompatProject) && i.d.HasProjid()):
		return fmt.Errorf("project %d: the volume or the inode has no room for one: %w", *projid, ErrNotSup)
	}
	err := o.do(2, func() error {
		i.d.Flags ^= change &^ lateFlags
		if moves {
			i.d.Projid = *projid
		}
		i.stamp(disk.TimestampOf(time.Now()))
		return i.store(o)
	})
	if err == nil && change&lateFlags != 0 {
		return fmt.Errorf("inode flags %#x: %w", flags, ErrNotSup)
	}
	return err
}
