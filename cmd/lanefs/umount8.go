package main

import (
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/utab"
	"github.com/lanefs/lanefs/fs"
)

// tellUmount8 has umount(8) find the helper umount.fuse.lanefs, which waits until the device is closed, also for root and an absolute path.
// Without it the mount works all the same.
func (d *daemon) tellUmount8() {
	if os.Geteuid() != 0 {
		return // umount(8) reads the table of mounts for others
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !fs.Ours(m), false })
	if err == nil {
		err = utab.Add(utab.Dir, d.cfg.Device, d.cfg.Dir, func(target string) bool {
			return slices.ContainsFunc(all, func(m *mountinfo.Info) bool { return m.Mountpoint == target })
		})
	}
	if err != nil {
		d.log.Info("umount(8) of this mount's absolute path will return before the device is closed; lanefs umount waits", "error", err.Error())
	}
}

// forgetUmount8 takes that back, once the mount at dir is gone.
func forgetUmount8(device, dir string) {
	if os.Geteuid() == 0 {
		_ = utab.Remove(utab.Dir, device, dir) // what stays is taken out by the next mount
	}
}
