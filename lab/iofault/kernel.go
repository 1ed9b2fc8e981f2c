package iofault

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// kernelReplay mounts an image with the kernel's ext4 at dir, and unmounts it. The kernel replays what is in its journal.
func kernelReplay(f *os.File, dir string) error {
	loop, err := attach(f)
	if err != nil {
		return err
	}
	defer loop.Close() // the mount keeps it; it goes away with its last user
	if err := unix.Mount(loop.Name(), dir, "ext4", unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount %s: %w (see dmesg)", loop.Name(), err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmount %q: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
}

// attach gives an image a loop device that goes away with its last user.
func attach(img *os.File) (*os.File, error) {
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
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(img.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if err != unix.EBUSY { // somebody else was faster
			return nil, fmt.Errorf("loop device %d: %w", n, err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil, errors.New("every free loop device is taken by somebody else")
}

var kernelMissing = sync.OnceValue(func() string {
	if os.Geteuid() != 0 {
		return "mounting through the kernel needs root"
	}
	dir, err := os.MkdirTemp("", "iofault-")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	path := dir + "/img"
	if _, err := tool(nil, "mkfs.ext4", "-q", "-F", path, "2M"); err != nil {
		return err.Error()
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if err := os.Mkdir(dir+"/mnt", 0o700); err != nil {
		return err.Error()
	}
	if err := kernelReplay(f, dir+"/mnt"); err != nil {
		return err.Error()
	}
	return ""
})

// KernelMissing says why the kernel cannot look at media here, "" if it can.
func KernelMissing() string { return kernelMissing() }
