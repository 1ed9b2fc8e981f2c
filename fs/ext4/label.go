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

// SetLabel renames the volume. The backups of the superblock keep the old name until e2fsck or tune2fs writes them.
func (v *FS) SetLabel(label string) (err error) {
	defer v.noteTo(&err)
	if len(label) > MaxLabel {
		return ErrInvalid
	}
	return v.do(1, func(h *jbd2.Handle) error {
		v.updateSuper(h, func(sb *disk.Superblock) {
			sb.VolumeName = [MaxLabel]byte{}
			copy(sb.VolumeName[:], label)
		})
		return nil
	})
}
