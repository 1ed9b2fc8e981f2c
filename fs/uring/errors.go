package uring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// An Unavailable error says why there is no FUSE over io_uring, and what to do about it.
type Unavailable struct {
	Why    string
	Remedy string // empty: there is none
	Err    error  // of the kernel; nil: it did not come to that
}

// Found is the reason without the remedy.
func (u *Unavailable) Found() string {
	if u.Err == nil {
		return u.Why
	}
	return u.Why + ": " + u.Err.Error()
}

func (u *Unavailable) Error() string {
	text := u.Found()
	if u.Remedy != "" {
		text += " (" + u.Remedy + ")"
	}
	return text
}

func (u *Unavailable) Unwrap() error { return u.Err }

const (
	sysfs     = "/sys"
	parameter = "/sys/module/fuse/parameters/enable_uring"
	disabled  = "/proc/sys/kernel/io_uring_disabled"
)

// The reasons that a look at the machine finds, before anything is tried.
var (
	ErrKernel    = &Unavailable{Why: "this kernel has no FUSE over io_uring", Remedy: "Linux 6.14 or newer with CONFIG_FUSE_IO_URING has it"}
	ErrNoSys     = &Unavailable{Why: "whether this kernel has FUSE over io_uring cannot be seen", Remedy: "mount sysfs on /sys"}
	ErrParameter = &Unavailable{Why: "the fuse module's parameter enable_uring is off",
		Remedy: "options fuse enable_uring=1 in /etc/modprobe.d/lanefs.conf, or now, before the mount: echo Y > " + parameter}
	ErrDisabled = &Unavailable{Why: "the sysctl kernel.io_uring_disabled forbids io_uring", Remedy: "sysctl kernel.io_uring_disabled=0"}
	ErrRefused  = &Unavailable{Why: "io_uring is refused here, by a container's seccomp filter most likely",
		Remedy: "let the container use io_uring_setup, io_uring_enter and io_uring_register"}
	// ErrFlag says that the kernel did not offer FUSE_OVER_IO_URING in its INIT.
	ErrFlag = &Unavailable{Why: "the kernel did not offer it to this mount", Remedy: ErrParameter.Remedy}
)

// Check says what in the settings of the machine whose files are below root keeps a mount from FUSE over io_uring; nil: nothing that can
// be read.
func Check(root string) error {
	switch b, err := os.ReadFile(filepath.Join(root, parameter)); {
	case errors.Is(err, os.ErrNotExist):
		if list, _ := os.ReadDir(filepath.Join(root, sysfs)); len(list) == 0 {
			return ErrNoSys
		}
		return ErrKernel
	case err == nil && strings.TrimSpace(string(b)) != "Y":
		return ErrParameter
	}
	if b, err := os.ReadFile(filepath.Join(root, disabled)); err == nil {
		switch strings.TrimSpace(string(b)) {
		case "2":
			return ErrDisabled
		case "1": // for those without CAP_SYS_ADMIN; a group may be let in
			if os.Geteuid() != 0 {
				return ErrDisabled
			}
		}
	}
	return nil
}

// because makes an error of the kernel's one that says what to do.
func because(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		if there := Check("/"); there != nil {
			return there
		}
		return &Unavailable{Why: ErrRefused.Why, Remedy: ErrRefused.Remedy, Err: err}
	case errors.Is(err, unix.EOPNOTSUPP):
		return ErrParameter
	case errors.Is(err, unix.EINVAL), errors.Is(err, errors.ErrUnsupported):
		return &Unavailable{Why: "this kernel's io_uring lacks what FUSE over it needs", Remedy: ErrKernel.Remedy, Err: err}
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return &Unavailable{Why: "there are too few descriptors for the rings", Remedy: "raise ulimit -n", Err: err}
	case errors.Is(err, unix.ENOMEM):
		u := &Unavailable{Why: "there is no memory for the rings", Err: err}
		// The kernel counts a ring as locked memory of the user's, but for those with CAP_IPC_LOCK.
		if limit := (unix.Rlimit{}); unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
			u.Remedy = fmt.Sprintf("the limit of locked memory is %d KiB: raise it (ulimit -l, or LimitMEMLOCK of a unit)", limit.Cur>>10)
		}
		return u
	}
	return fmt.Errorf("FUSE over io_uring: %w", err)
}
