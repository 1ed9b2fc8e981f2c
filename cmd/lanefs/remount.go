package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/fs"
)

// mount -o remount changes what the kernel enforces at a mount: ro and rw, nosuid and the like. The daemon goes on as it is. mount(8)
// hands on the options that the mount has beside those that were given.

// fuseOptions are those that the table of mounts shows of any FUSE mount.
var fuseOptions = []string{"user_id", "group_id", "rootmode", "max_read", "blksize", "fd", "subtype", "fsname", "allow_other", "default_permissions"}

// remountOptions are the options beside remount; false if that is not among them.
func remountOptions(lists []string) (options []string, ok bool) {
	for item := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		name, _, _ := strings.Cut(item, "=")
		switch {
		case item == "remount":
			ok = true
		case item != "" && !slices.Contains(fuseOptions, name):
			options = append(options, item)
		}
	}
	return options, ok
}

// remount changes the mount at dir.
func remount(dir string, options []string, fake bool) error {
	c := mountopt.Default()
	if err := mountopt.Parse(&c, options...); err != nil {
		return usage(err)
	}
	m, err := ourMount(dir)
	if err != nil || fake {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("remount %q: only root can change a mount: unmount it (lanefs umount %s) and mount it with other options", dir, m.Mountpoint)
	}
	r, err := query(m, request{Op: "state"}, requestTimeout, nil)
	if err != nil {
		return fmt.Errorf("%q: %w", dir, err)
	}
	if r.Config == nil {
		return fmt.Errorf("remount %q: its daemon does not say how it is mounted", dir)
	}
	first := *r.Config
	if !c.ReadOnly && (first.ReadOnly || r.ReadOnly != "") {
		why := "it was mounted with ro"
		if !first.ReadOnly {
			why = r.ReadOnly
		}
		return fmt.Errorf("remount %q: the volume cannot become writable while it is mounted: %s. Unmount it (lanefs umount %s) and mount it again", dir, why, m.Mountpoint)
	}
	first.ReadOnly = c.ReadOnly // that changes
	if other := c.Differs(&first.Config, func(string) bool { return true }); len(other) > 0 {
		return fmt.Errorf("remount %q: the options %s cannot be changed while it is mounted: unmount it (lanefs umount %s) and mount it with them",
			dir, strings.Join(other, ", "), m.Mountpoint)
	}
	if c.ReadOnly {
		if _, err := query(m, request{Op: "sync"}, umountTimeout, nil); err != nil {
			return fmt.Errorf("remount %q: %w", dir, err)
		}
	}
	err = fs.Remount(m.Mountpoint, c.ReadOnly, c.Kernel)
	if errors.Is(err, fs.ErrBusy) {
		return fmt.Errorf("remount %q: %w: files are open for writing there (fuser -vm %s lists them); close them, and remount again", dir, err, m.Mountpoint)
	}
	return err
}
