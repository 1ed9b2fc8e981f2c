package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
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

// WithKernel mounts an image with the kernel's ext4 at dir, calls f, and unmounts it.
func WithKernel(img *os.File, dir string, f func() error) error {
	if err := Mount(img, dir, false); err != nil {
		return err
	}
	return errors.Join(f(), loopmount.Unmount(dir))
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
