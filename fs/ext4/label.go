package ext4

import (
	"github.com/lanefs/lanefs/fs/ext4/disk"
	"github.com/lanefs/lanefs/fs/ext4/jbd2"
)

// MaxLabel is the longest label in bytes.
const MaxLabel = len(disk.Superblock{}.VolumeName)

// Label is the volume's name (s_volume_name).
func (v *FS) Label() string {
	v.sbMu.Lock()
	defer v.sbMu.Unlock()
	return v.sb.Label()
}

// SetLabel renames the volume, on the device when it returns: its superblock, then the backups, each of which may keep the old name if the power is cut
// meanwhile. A damaged backup keeps it in any case, and the log says so.
func (v *FS) SetLabel(label string) error {
	if len(label) > MaxLabel {
		return ErrInvalid
	}
	set := func(sb *disk.Superblock) {
		sb.VolumeName = [MaxLabel]byte{}
		copy(sb.VolumeName[:], label)
	}
	err := v.change(nil, func(o *op) error {
		err := o.do(1, func() error {
			v.updateSuper(o.h, set)
			return nil
		})
		for _, group := range v.sb.BackupGroups() {
			if err == nil {
				err = v.updateBackup(o, group, set)
			}
		}
		return err
	})
	if err == nil {
		err = v.note(v.jnl.Checkpoint()) // for those who look for a volume by its label, on the device
	}
	return err
}

// updateBackup changes the superblock's backup in a group.
func (v *FS) updateBackup(o *op, group uint32, f func(*disk.Superblock)) error {
	buf, err := v.cache.Get(jbd2.Block(v.sb.GroupFirstBlock(group)))
	if err != nil {
		return err
	}
	defer buf.Put()
	return o.do(1, func() error {
		o.h.Save(buf)
		buf.Lock()
		defer buf.Unlock()
		sb, err := disk.DecodeSuperblock(buf.Data())
		if err == nil {
			err = sb.VerifyChecksum()
		}
		if err != nil {
			v.opt.Logf("%s: the superblock's backup in group %d is left as it is: %v; run e2fsck on the volume", v.name(), group, err)
			return nil
		}
		f(sb)
		sb.Encode(buf.Data())
		o.h.Dirty(buf)
		return nil
	})
}
