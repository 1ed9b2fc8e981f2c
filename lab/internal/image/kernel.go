package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Attach gives an image a loop device that is detached with its last user.
func Attach(img *os.File, readOnly bool) (*os.File, error) {
	mode, flags := os.O_RDWR, uint32(unix.LO_FLAGS_AUTOCLEAR)
	if readOnly {
		mode, flags = os.O_RDONLY, flags|unix.LO_FLAGS_READ_ONLY
	}
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range 1000 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), mode, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(img.Fd()), Info: unix.LoopInfo64{Flags: flags}})
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if err != unix.EBUSY { // another process took the device
			return nil, fmt.Errorf("loop device %d: %w", n, err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil, errors.New("other processes took every free loop device")
}

// Mount mounts an image with the kernel's ext4 at dir. The kernel replays what is in its journal.
func Mount(img *os.File, dir string, readOnly bool) error {
	loop, err := Attach(img, readOnly)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount keeps it attached
	flags := uintptr(unix.MS_NOATIME)
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	if err := unix.Mount(loop.Name(), dir, "ext4", flags, ""); err != nil {
		return fmt.Errorf("mount %s of %q: %w (see dmesg)", loop.Name(), img.Name(), err)
	}
	return nil
}

// Unmount unmounts dir. Another process may keep it busy for a moment: one that lists mounts, or a child of this process
// that has not come to its execve(2). A mount that stays busy is detached, and that is an error. The volume itself stays in use as long as a mount
// namespace has a copy of the mount, which one that is made meanwhile has: so Unmount returns when its loop device has no image any more.
func Unmount(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("unmount %q: %w", dir, err)
	}
	loop := fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev))
	name, err := os.ReadFile(loop)
	isLoop := err == nil
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err == nil && isLoop {
			return detached(loop, string(name), end)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmount %q: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
}

// detached returns when a loop device has another image than the one with that name, or none.
func detached(loop, name string, end time.Time) error {
	for ; ; time.Sleep(5 * time.Millisecond) {
		if now, err := os.ReadFile(loop); err != nil || string(now) != name {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("another mount namespace still has the volume on %q", strings.TrimSpace(name))
		}
	}
}

// WithKernel mounts an image with the kernel's ext4 at dir, calls f, and unmounts it.
func WithKernel(img *os.File, dir string, f func() error) error {
	if err := Mount(img, dir, false); err != nil {
		return err
	}
	return errors.Join(f(), Unmount(dir))
}

// KernelMissing says why the kernel cannot mount images here, "" if it can. It tries.
var KernelMissing = sync.OnceValue(func() string {
	if os.Geteuid() != 0 {
		return "mounting through the kernel needs root"
	}
	if err := tryKernel(); err != nil {
		return err.Error()
	}
	return ""
})

func tryKernel() error {
	dir, err := os.MkdirTemp("", "lanefs-kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	if err := Make(path, "2M"); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.Mkdir(mnt, 0o700); err != nil {
		return err
	}
	return WithKernel(f, mnt, func() error { return nil })
}
