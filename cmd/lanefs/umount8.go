package main

import (
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/utab"
)

// tellUmount8 has umount(8) find the helper umount.fuse.lanefs, which waits until the device is closed, also for root and an absolute path.
// Without it the mount works all the same.
func (d *daemon) tellUmount8() {
	if os.Geteuid() != 0 {
		return // umount(8) reads the table of mounts for others
	}
	if err := utab.Add(utab.Dir, d.cfg.source(), d.cfg.Dir, served8); err != nil {
		d.log.Info("umount(8) of this mount's absolute path will return before the device is closed; lanefs umount waits", "error", err.Error())
	}
}

// served8 says whether a daemon of root's serves a mount at target: one that has an entry holds target's lock until it has taken the entry
// back. The table of mounts does not say it: that of another mount namespace has other mounts, and one that was read before libmount's table was
// locked has none that came since. But it says that a mount was moved there.
func served8(target string) bool {
	return held(runFile(0, target, lockEnd)) || slices.ContainsFunc(daemons(), func(s *served) bool {
		return slices.ContainsFunc(s.mounts(), func(m *mountinfo.Info) bool { return m.Mountpoint == target })
	})
}

// forgetUmount8 takes that back, once the mount at dir is gone, or wherever mount(8) has moved it to.
func forgetUmount8(device, dir string) {
	if os.Geteuid() == 0 {
		_ = utab.Remove(utab.Dir, device, dir, served8) // what stays is taken out by the next mount
	}
}
