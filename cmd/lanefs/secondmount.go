package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
)

// The second mount of a device is one more mount of the file system that the first one made, as with the kernel's file systems. The
// daemon has no part in it. It has nosuid, nodev and noexec of its own. Other options that it asks for must be those of the first
// mount; those that it leaves out are.

// perMount are the options that each mount of a file system has for itself.
var perMount = map[string]uint64{"nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC}

// mountSecond mounts at cfg.Dir what s serves.
func (cfg *mountConfig) mountSecond(s *served) error {
	first := whole(s.mounts())
	switch {
	case first == nil:
		return fmt.Errorf("device %q is in use: parts of it stay mounted, such as %s; unmount them first", cfg.Device, describe(s.mounts()[0]))
	case cfg.Foreground:
		return fmt.Errorf("device %q is mounted at %q already, by process %d: there is nothing to serve in the foreground", cfg.Device, first.Mountpoint, s.PID)
	case os.Geteuid() != 0:
		return fmt.Errorf("device %q is mounted at %q already, and only root can mount it twice", cfg.Device, first.Mountpoint)
	}
	r, err := query(first, request{Op: "state"}, requestTimeout, nil)
	if err == nil && r.Config == nil {
		err = errors.New("its daemon does not say how")
	}
	if err != nil {
		return fmt.Errorf("device %q is mounted at %q already: %w", cfg.Device, first.Mountpoint, err)
	}
	if r.Config.Raw {
		return fmt.Errorf("device %q is in use: process %d shows it as the file %q; lanefs umount %s first", cfg.Device, s.PID, first.Mountpoint, first.Mountpoint)
	}
	if r.Config.Part != cfg.Part {
		return fmt.Errorf("device %q is in use: another part of it is mounted at %q; unmount that first", cfg.Device, first.Mountpoint)
	}
	if err := cfg.checkSame(r.Config, first.Mountpoint); err != nil {
		return err
	}
	if s.Dir != cfg.Dir { // else that daemon has claimed it
		files, err := claim(cfg.Dir)
		if err != nil {
			return err
		}
		defer files.release(true)
	}
	if err := fs.CheckMountPoint(cfg.Dir); err != nil {
		return err
	}
	return cfg.attach(first)
}

// checkSame names the options that were asked for and that the first mount does not have.
func (cfg *mountConfig) checkSame(first *mountConfig, at string) error {
	if cfg.ReadOnly != first.ReadOnly {
		word := map[bool]string{true: "read-only", false: "read-write"}
		return fmt.Errorf("device %q is mounted %s at %q already, so it cannot be mounted %s; mount --bind -o ro %s %s shows it read-only",
			cfg.Device, word[first.ReadOnly], at, word[cfg.ReadOnly], at, cfg.Dir)
	}
	other := cfg.Differs(&first.Config, func(option string) bool { return perMount[option] != 0 })
	if len(other) > 0 {
		return fmt.Errorf("device %q is mounted at %q already, with other options (%s): unmount it there first, or ask for the same",
			cfg.Device, at, strings.Join(other, ", "))
	}
	return nil
}

// attach makes one more mount of what is mounted at first. It is a private one, as a new mount is.
func (cfg *mountConfig) attach(first *mountinfo.Info) error {
	explain := func(call string, err error) error {
		return fmt.Errorf("device %q is mounted at %q already, and mounting it a second time failed: %w", cfg.Device, first.Mountpoint, os.NewSyscallError(call, err))
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, first.Mountpoint, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return explain("open_tree", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && st.Dev != fs.Number(first) {
		err = errors.New("something else is mounted over it")
	}
	if err != nil {
		return explain("fstat", err)
	}
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	for o, flag := range perMount {
		if slices.Contains(cfg.Kernel, o) {
			attr.Attr_set |= flag
		} else {
			attr.Attr_clr |= flag
		}
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return explain("mount_setattr", err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, cfg.Dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return explain("move_mount", err)
	}
	return nil
}
