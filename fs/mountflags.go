package fs

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

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
	{"strictatime", unix.MS_STRICTATIME, false},
	{"nodiratime", unix.MS_NODIRATIME, false},
	{"diratime", unix.MS_NODIRATIME, true},
	{"sync", unix.MS_SYNCHRONOUS, false},
	{"async", unix.MS_SYNCHRONOUS, true},
	{"dirsync", unix.MS_DIRSYNC, false},
}

// mountFlags splits mount options into MS_* flags and those that the FUSE driver takes as text. Other options are errors.
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

// volumeFlags are flags that fusermount3 does not know. The volume implements them, not the kernel.
const volumeFlags = unix.MS_NODIRATIME | unix.MS_STRICTATIME

// flagNames is the inverse of mountFlags, for fusermount3.
func flagNames(flags uintptr) []string {
	var names []string
	for _, f := range flagOptions {
		if !f.clear && flags&f.flag&^volumeFlags != 0 {
			names = append(names, f.name)
		}
	}
	return names
}
