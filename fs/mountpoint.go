package fs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkMountPoint says what is wrong with a mount point in better words than mount(2). A mount of ours whose server died
// is taken away.
func checkMountPoint(dir string) error {
	kind, err := mountType(dir)
	if err != nil {
		return err
	}
	if kind == "fuse."+Type {
		// Unlike stat, statfs is never answered from the kernel's cache.
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); !errors.Is(err, unix.ENOTCONN) {
			return fmt.Errorf("mount point %q is in use by another LaneFS mount: unmount it first", dir)
		}
		if err := Detach(dir); err != nil {
			return fmt.Errorf("dead mount at %q: %w", dir, err)
		}
	}
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("mount point %q does not exist: create it first", dir)
	case errors.Is(err, unix.ENOTCONN):
		return fmt.Errorf("mount point %q carries a dead mount of type %q: unmount it first", dir, kind)
	case err != nil:
		return fmt.Errorf("mount point: %w", err)
	case !fi.IsDir():
		return fmt.Errorf("mount point %q is not a directory", dir)
	}
	return nil
}

// Detach takes a mount away even if it is in use or its server is dead.
func Detach(dir string) error {
	if os.Geteuid() == 0 {
		return os.NewSyscallError("umount2", unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	}
	return fusermount("-u", "-z", "--", dir)
}

// mountType returns the file system type of the last mount on dir, "" if there is none.
func mountType(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	// Fails on a dead mount, which then is no symbolic link.
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("mounts: %w", err)
	}
	kind := ""
	for line := range strings.Lines(string(b)) {
		// proc(5): the mount point is the fifth field, the type the first one after " - ".
		left, right, ok := strings.Cut(line, " - ")
		f := strings.Fields(left)
		if !ok || len(f) < 5 || unescape(f[4]) != abs {
			continue
		}
		kind, _, _ = strings.Cut(right, " ")
	}
	return kind, nil
}

// unescape undoes the octal escapes of /proc/self/mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// flagOptions are the mount options that mount(2) takes as flags.
var flagOptions = []struct {
	name  string
	flag  uintptr
	clear bool
}{
	{"ro", unix.MS_RDONLY, false},
	{"rw", unix.MS_RDONLY, true},
	{"nosuid", unix.MS_NOSUID, false},
	{"suid", unix.MS_NOSUID, true},
	{"nodev", unix.MS_NODEV, false},
	{"dev", unix.MS_NODEV, true},
	{"noexec", unix.MS_NOEXEC, false},
	{"exec", unix.MS_NOEXEC, true},
	{"noatime", unix.MS_NOATIME, false},
	{"atime", unix.MS_NOATIME, true},
	{"sync", unix.MS_SYNCHRONOUS, false},
	{"async", unix.MS_SYNCHRONOUS, true},
	{"dirsync", unix.MS_DIRSYNC, false},
}

// mountFlags splits mount options into flags and what the FUSE driver takes as text, and refuses the rest.
func mountFlags(options []string) (flags uintptr, rest []string, err error) {
next:
	for _, o := range options {
		for _, f := range flagOptions {
			if f.name != o {
				continue
			}
			if f.clear {
				flags &^= f.flag
			} else {
				flags |= f.flag
			}
			continue next
		}
		switch {
		case strings.HasPrefix(o, "context=") || strings.HasPrefix(o, "fscontext=") ||
			strings.HasPrefix(o, "defcontext=") || strings.HasPrefix(o, "rootcontext="):
			rest = append(rest, o)
		default:
			return 0, nil, fmt.Errorf("unknown mount option %q", o)
		}
	}
	return flags, rest, nil
}

// flagNames undoes mountFlags, for fusermount3.
func flagNames(flags uintptr) []string {
	var names []string
	for _, f := range flagOptions {
		if !f.clear && flags&f.flag != 0 {
			names = append(names, f.name)
		}
	}
	return names
}
