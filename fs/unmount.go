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

// The kernel releases a file some time after its last close(2) has returned: on a busy machine, a long time. So a mount counts as busy
// only if umount(2) says so for busyTime.
const (
	busyTime    = 2 * time.Second
	busyStep    = 5 * time.Millisecond
	busyStepMax = 100 * time.Millisecond
)

// ErrBusy says that a mount is in use and was not unmounted.
var ErrBusy = errors.New("mount is busy")

// MountsOf returns the mounts of the file system with device number dev in this mount namespace, in the order in which they were made.
// Bind mounts are included. It reads the table of mounts and needs no daemon.
func MountsOf(dev uint64) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return Number(m) != dev, false })
}

// Number returns the device number of a mount's file system.
func Number(m *mountinfo.Info) uint64 { return unix.Mkdev(uint32(m.Major), uint32(m.Minor)) }

// Unmount unmounts one mount and returns when it is out of the tree. ErrBusy means that files are open or that it is the working
// directory of a process. The mount is still there then.
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
			return nil // another process has unmounted it
		}
		if e := covered(m); e != nil {
			return e
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

// busy reports whether err is EBUSY, or fusermount3's message for it.
func busy(err error) bool {
	return errors.Is(err, syscall.EBUSY) || strings.Contains(err.Error(), "busy")
}

// mountsAt returns the mounts on a path, the topmost last. The path is compared with the table of mounts and not looked up.
func mountsAt(path string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
}

// covered returns nil if the path of m leads to m. Else it names what is mounted over it, or over a directory above: an unmount by
// that path would find nothing, or take away what is another's.
func covered(m *mountinfo.Info) error {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return err
	}
	byID := map[int]*mountinfo.Info{}
	for _, o := range all {
		byID[o.ID] = o
	}
	above := map[int]bool{} // m, what it is mounted on, what that is mounted on
	for o := m; o != nil && !above[o.ID]; o = byID[o.Parent] {
		above[o.ID] = true
	}
	for _, o := range slices.Backward(all) {
		if o.Mountpoint == m.Mountpoint {
			if o.ID == m.ID {
				break
			}
			return fmt.Errorf("unmount %q: %s of type %s is mounted over it: unmount that first", m.Mountpoint, o.Source, o.FSType)
		}
	}
	for _, o := range slices.Backward(all) {
		if strings.HasPrefix(m.Mountpoint, strings.TrimSuffix(o.Mountpoint, "/")+"/") && !above[o.ID] {
			return fmt.Errorf("unmount %q: it is hidden by %s of type %s, which is mounted at %q: unmount that first", m.Mountpoint, o.Source, o.FSType, o.Mountpoint)
		}
	}
	return nil
}

// inside returns the mount points below m.
func inside(m *mountinfo.Info) (names []string) {
	all, _ := mountinfo.GetMounts(func(o *mountinfo.Info) (skip, stop bool) { return o.Parent != m.ID, false })
	for _, o := range all {
		names = append(names, fmt.Sprintf("%q", o.Mountpoint))
	}
	return names
}

// mounts returns the mounts of the server's file system in this mount namespace. The device number may be reused as soon as the file
// system has ended, before Wait returns, so type and source are compared too.
func (s *Server) mounts() ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		known := s.dev == Number(m) || s.dev == 0 && m.Mountpoint == s.dir // the number is not known
		return !known || !Ours(m) || s.opt.FSName != "" && m.Source != s.opt.FSName, false
	})
}

// Unmount unmounts every mount of the file system, bind mounts included, and waits for the last request. ErrBusy means that one is in
// use and still there.
func (s *Server) Unmount() error {
	err := s.UnmountHere()
	if err == nil {
		s.Wait()
	}
	return err
}

// UnmountHere is Unmount that does not wait. The file system has not ended if it has mounts in other mount namespaces, too, or a mount was
// detached while files were open.
func (s *Server) UnmountHere() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	all, err := s.mounts()
	if err != nil {
		if err := s.unmountUnseen(err); err != nil {
			return err
		}
	}
	for _, m := range slices.Backward(all) {
		if err := Unmount(m); err != nil {
			select {
			case <-s.done: // another process has unmounted it
				return nil
			default:
				return err
			}
		}
	}
	return nil
}

// Detach takes every mount of the file system out of the tree, even if it is in use. The server ends when the last open file is closed.
func (s *Server) Detach() error {
	all, err := s.mounts()
	if err != nil && s.leads() {
		return Detach(s.dir)
	}
	for _, m := range slices.Backward(all) {
		err = errors.Join(err, DetachMount(m))
	}
	return err
}

// leads reports whether the directory where the file system was mounted leads to it, without a look at the table of mounts.
func (s *Server) leads() bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, s.dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
	return err == nil && s.dev != 0 && unix.Mkdev(st.Dev_major, st.Dev_minor) == s.dev
}

// unmountUnseen unmounts where the table of mounts cannot be read any more, for the given reason: /proc has gone. Other mounts of the file system, bind mounts,
// stay.
func (s *Server) unmountUnseen(why error) error {
	step := busyStep
	for end := time.Now().Add(busyTime); ; time.Sleep(step) {
		step = min(2*step, busyStepMax)
		if !s.leads() {
			return why
		}
		switch err := unmount(s.dir); {
		case err == nil:
			return nil
		case !busy(err):
			return errors.Join(fmt.Errorf("unmount %q: %w", s.dir, err), why)
		case time.Now().After(end):
			return fmt.Errorf("unmount %q: %w", s.dir, ErrBusy)
		}
	}
}

// Abort makes the kernel end the connection. The mount returns errors then, and Wait returns
// (Documentation/filesystems/fuse/fuse.rst, "Control filesystem").
func (s *Server) Abort() error {
	if s.dev == 0 {
		return errors.New("the number of the FUSE connection is not known")
	}
	const control = "/sys/fs/fuse/connections"
	name := filepath.Join(fmt.Sprint(unix.Minor(s.dev)), "abort")
	err := os.WriteFile(filepath.Join(control, name), []byte("1"), 0)
	if !errors.Is(err, os.ErrNotExist) || os.Geteuid() != 0 {
		return err
	}
	// The control file system is not mounted, as in a container: mount it for the moment.
	if err := unix.Mount("fusectl", control, "fusectl", 0, ""); err != nil {
		return os.NewSyscallError("mounting fusectl", err)
	}
	err = os.WriteFile(filepath.Join(control, name), []byte("1"), 0)
	return errors.Join(err, unix.Unmount(control, unix.MNT_DETACH))
}

// ErrServed says that a mount did not end when it was told to. Its volume must not be closed.
var ErrServed = errors.New("the mount does not end")

// abandonTime is how long Abandon waits after Detach, and again after Abort.
const abandonTime = 5 * time.Second

// Abandon ends a mount that was made in vain. It returns nil when the last request was answered, else ErrServed.
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
