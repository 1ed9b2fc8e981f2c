package ext4

import "github.com/lanefs/lanefs/fs/ext4/internal/volume"

// Volume is the volume as the packages below know it.
func (v *FS) Volume() *volume.FS { return v.vol }

// Live is the inode as the packages below know it.
func (i *Inode) Live() *volume.Inode { return i.in() }
