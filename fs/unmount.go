package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// The kernel lets go of a file a moment after its last close has returned, and on a busy machine it is a long one. So a
// mount is busy when it is so for busyTime.
const (
	busyTime    = 2 * time.Second
	busyStep    = 5 * time.Millisecond
	busyStepMax = 100 * time.Millisecond
)

// ErrBusy says that a mount is still in use and was not taken away.
var ErrBusy = errors.New("mount is busy")

// MountsOf is where the file system with device number dev is mounted in this mount namespace, bind mounts of parts of it
// included, in the order in which they were made. It asks the kernel only, no daemon.
func MountsOf(dev uint64) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return Number(m) != dev, false })
}

// Number is the device number of a mount's file system.
func Number(m *mountinfo.Info) uint64 { return unix.Mkdev(uint32(m.Major), uint32(m.Minor)) }

// Unmount takes one mount away, and returns when its name is gone. ErrBusy means that files are open or that it is
// someone's working directory, and that the mount is still there.
func Unmount(m *mountinfo.Info) error {
	var err error
	step := busyStep
	for end := time.Now().Add(busyTime); ; time.Sleep(step) {
		step = min(2*step, busyStepMax)
		there, e := mountsAt(m.Mountpoint)
		if e != nil {
			return e
		}
		if !slices.ContainsFunc(there, func(o *mountinfo.Info) bool { return o.ID == m.ID }) {
			return nil // somebody was faster
		}
		if top := there[len(there)-1]; top.ID != m.ID {
			return fmt.Errorf("unmount %q: %s of type %s is mounted over it: unmount that first", m.Mountpoint, top.Source, top.FSType)
		}
		if err = unmount(m.Mountpoint); err == nil || !busy(err) || time.Now().After(end) {
			break
		}
	}
	switch {
	case err == nil:
		return nil
	case !busy(err):
		return fmt.Errorf("unmount %q: %w", m.Mountpoint, err)
	}
	if in := inside(m); len(in) > 0 {
		return fmt.Errorf("unmount %q: %w: unmount first what is mounted in it: %s", m.Mountpoint, ErrBusy, strings.Join(in, ", "))
	}
	return fmt.Errorf("unmount %q: %w: close what is open there (fuser -vm lists it)", m.Mountpoint, ErrBusy)
}

func unmount(dir string) error {
	if os.Geteuid() == 0 {
		return os.NewSyscallError("umount2", unix.Unmount(dir, unix.UMOUNT_NOFOLLOW))
	}
	return fusermount("-u", "--", dir)
}

// busy knows EBUSY, and fusermount3's word for it.
func busy(err error) bool {
	return errors.Is(err, syscall.EBUSY) || strings.Contains(err.Error(), "busy")
}

// mountsAt is what is mounted on a path, the topmost last. The path is as the kernel has it: nothing is looked up.
func mountsAt(path string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
}

// inside is where something is mounted in the directories of m.
func inside(m *mountinfo.Info) (names []string) {
	all, _ := mountinfo.GetMounts(func(o *mountinfo.Info) (skip, stop bool) { return o.Parent != m.ID, false })
	for _, o := range all {
		names = append(names, fmt.Sprintf("%q", o.Mountpoint))
	}
	return names
}

// mounts are those of the server's file system in this mount namespace. Its number may be another's as soon as it has ended,
// before we know of that; its device is not.
func (s *Server) mounts() ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		known := s.dev == Number(m) || s.dev == 0 && m.Mountpoint == s.dir // it never said its number
		return !known || !Ours(m) || s.opt.FSName != "" && m.Source != s.opt.FSName, false
	})
}

// Unmount takes every mount of the file system away, bind mounts included, and waits for the last request. ErrBusy means
// that one is in use, and still there.
func (s *Server) Unmount() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	all, err := s.mounts()
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(all) {
		if err := Unmount(m); err != nil {
			select {
			case <-s.done: // somebody else was faster
				return nil
			default:
				return err
			}
		}
	}
	s.Wait()
	return nil
}

// Detach takes every mount of the file system out of the tree, in use or not. The server ends with the last user.
func (s *Server) Detach() error {
	all, err := s.mounts()
	for _, m := range slices.Backward(all) {
		err = errors.Join(err, Detach(m.Mountpoint))
	}
	return err
}

// Abort has the kernel end the connection, after which the mount gives errors and Wait returns
// (Documentation/filesystems/fuse/fuse.rst, "Control filesystem").
func (s *Server) Abort() error {
	if s.dev == 0 {
		return errors.New("which connection it is, is not known")
	}
	const control = "/sys/fs/fuse/connections"
	name := filepath.Join(fmt.Sprint(unix.Minor(s.dev)), "abort")
	err := os.WriteFile(filepath.Join(control, name), []byte("1"), 0)
	if !errors.Is(err, os.ErrNotExist) || os.Geteuid() != 0 {
		return err
	}
	// The control file system is not mounted: a container, most likely. It is for a moment.
	if err := unix.Mount("fusectl", control, "fusectl", 0, ""); err != nil {
		return os.NewSyscallError("mounting fusectl", err)
	}
	err = os.WriteFile(filepath.Join(control, name), []byte("1"), 0)
	return errors.Join(err, unix.Unmount(control, unix.MNT_DETACH))
}

// ErrServed says that a mount was to end and has not: its volume must not be closed.
var ErrServed = errors.New("the mount does not end")

// abandonTime is how long a mount that nobody has used yet may take to end, for each thing that is tried.
const abandonTime = 5 * time.Second

// Abandon ends a mount that came up and is not wanted. It returns nil when the last request was answered, else ErrServed.
func (s *Server) Abandon() error {
	var errs []error
	for _, try := range []func() error{s.Detach, s.Abort} {
		errs = append(errs, try())
		select {
		case <-s.done:
			return nil
		case <-time.After(abandonTime):
		}
	}
	return fmt.Errorf("%q: %w", s.dir, errors.Join(append(errs, ErrServed)...))
}
