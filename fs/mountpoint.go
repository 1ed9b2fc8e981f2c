package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// CheckMountPoint checks that dir exists, is a directory and has no mount on it, and returns an error that a user understands. A LaneFS
// mount whose daemon has died is unmounted.
func CheckMountPoint(dir string) error {
	m, err := MountedAt(dir)
	if err != nil {
		return err
	}
	if m != nil && Ours(m) && Dead(dir) {
		if err := Detach(dir); err != nil {
			return fmt.Errorf("mount point %q: a dead LaneFS is still mounted there and cannot be cleared: %w", dir, err)
		}
		if m, err = MountedAt(dir); err != nil {
			return err
		}
	}
	if m != nil {
		return fmt.Errorf("mount point %q is busy: %s of type %s is mounted there; unmount that, or name another directory", dir, m.Source, m.FSType)
	}
	fi, err := os.Stat(dir)
	var p *os.PathError
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("mount point %q: %w: create it first", dir, unix.ENOENT)
	case errors.As(err, &p):
		return fmt.Errorf("mount point %q: %w", dir, p.Err)
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case !fi.IsDir():
		return fmt.Errorf("mount point %q is not a directory; name one", dir)
	}
	return nil
}

// MountedAt returns the topmost mount on dir, nil if there is none.
func MountedAt(dir string) (*mountinfo.Info, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	// This fails on a dead mount. Then dir is no symbolic link.
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != abs, false })
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[len(all)-1], nil
}

// Ours reports whether a mount is a LaneFS mount.
func Ours(m *mountinfo.Info) bool { return m.FSType == "fuse."+subtype }

// deadTries and deadPause bound how long Dead repeats statfs.
const (
	deadTries = 50
	deadPause = 20 * time.Millisecond
)

// Dead reports whether the server of a mount has ended, so that no request is answered. It calls statfs, which unlike stat never comes
// from the kernel's cache. A request that the server was reading when it was killed fails with EIO, one that waited with ECONNABORTED, and one
// on an io_uring that ends with ECANCELED. Only ENOTCONN, the error of later requests, proves that the connection has ended.
func Dead(dir string) bool {
	for range deadTries {
		var st unix.Statfs_t
		switch err := unix.Statfs(dir, &st); {
		case errors.Is(err, unix.ENOTCONN):
			return true
		case errors.Is(err, unix.EIO), errors.Is(err, unix.ECONNABORTED), errors.Is(err, unix.ECANCELED):
			time.Sleep(deadPause)
		default:
			return false
		}
	}
	return false
}

// DetachMount is Detach for one mount. What is mounted over it stays, and is the error.
func DetachMount(m *mountinfo.Info) error {
	there, err := mountsAt(m.Mountpoint)
	if err != nil || !slices.ContainsFunc(there, func(o *mountinfo.Info) bool { return o.ID == m.ID }) {
		return err // nil: it has gone
	}
	if err := covered(m); err != nil {
		return err
	}
	if err := Detach(m.Mountpoint); err != nil {
		return fmt.Errorf("unmount %q: %w", m.Mountpoint, err)
	}
	return nil
}

// Detach unmounts dir even if it is in use or its server is dead (MNT_DETACH).
func Detach(dir string) error {
	if os.Geteuid() == 0 {
		return os.NewSyscallError("umount2", unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	return fusermount("-u", "-z", "--", dir)
}
