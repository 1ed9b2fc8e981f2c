package volume

import "github.com/lanefs/lanefs/fs/ext4/disk"

// MaxLabel is the longest label in bytes.
const MaxLabel = len(disk.Superblock{}.VolumeName)

// Label is the volume's name (s_volume_name).
func (v *FS) Label() string {
	v.SuperMu.Lock()
	defer v.SuperMu.Unlock()
	return v.Super.Label()
}

// SetLabel renames the volume, on the device when it returns: first its superblock, then the backups, each of which may keep the
// old name if the power is cut meanwhile. A damaged backup keeps it in any case, and the log says so.
func (v *FS) SetLabel(label string) error {
	if len(label) > MaxLabel {
		return ErrInvalid
	}
	set := func(sb *disk.Superblock) {
		sb.VolumeName = [MaxLabel]byte{}
		copy(sb.VolumeName[:], label)
	}
	err := v.Change(nil, func(o *Op) error {
		err := o.Do(1, func() error {
			v.updateSuper(o.Handle, set)
			return nil
		})
		for _, group := range v.Super.BackupGroups() {
			if err == nil {
				err = v.updateBackup(o, group, set)
			}
		}
		return err
	})
	if err == nil {
		err = v.Note(v.Journal.Checkpoint()) // udev and mount(8) look for the label on the device
	}
	return err
}

// updateBackup changes the superblock's backup in a group.
func (v *FS) updateBackup(o *Op, group uint32, f func(*disk.Superblock)) error {
	buf, err := v.Cache.Get(disk.Block(v.Super.GroupFirstBlock(group)))
	if err != nil {
		return err
	}
	defer buf.Put()
	return o.Do(1, func() error {
		o.Handle.Save(buf)
		buf.Lock()
		defer buf.Unlock()
		sb, err := disk.DecodeSuperblock(buf.Data())
		if err == nil {
			err = sb.VerifyChecksum()
		}
		if err != nil {
			v.Opt.Log.Warn("a backup of the superblock is left as it is; run e2fsck on the volume", "group", group, "error", err)
			return nil
		}
		f(sb)
		sb.Encode(buf.Data())
		o.Handle.Dirty(buf)
		return nil
	})
}
