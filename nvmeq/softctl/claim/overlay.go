package claim

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// An overlay shows a file of its upper directory as one of its own, with an inode of its own, so a lock of the one is none of the other. A claim of the overlay's
// is therefore a claim of the upper one as well. That is found by its path, so not in a mount namespace that has none for it, as a container's.
// A file of a lower directory is copied to the upper one as it is opened for writing.

// bottomOf are the bytes [off, end) of a file that has a path: its own, and those of the file of an upper directory that it shows.
func bottomOf(dev, ino uint64, off, end int64, path string) []extent {
	e := []extent{{On: bottom{Dev: dev, Ino: ino}, Off: off, End: end, path: path}}
	if up := upper(path); up != "" {
		if st, err := stat(up); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			e = append(e, extent{On: bottom{Dev: st.Dev, Ino: st.Ino}, Off: off, End: end, path: up})
		}
	}
	return e
}

// upper is the path of an overlay's file in the overlay's upper directory, empty for any other file. Links in the path are followed by the caller.
func upper(path string) string {
	on := mountOf(path)
	if on == nil || on.FSType != "overlay" {
		return ""
	}
	for _, option := range strings.Split(on.VFSOptions, ",") { // a comma of a name is \054
		dir, is := strings.CutPrefix(option, "upperdir=")
		if !is {
			continue
		}
		// The kernel's octal escapes, and below those the overlay's, a backslash before what would end a name.
		dir, err := strconv.Unquote(`"` + strings.ReplaceAll(dir, `"`, `\"`) + `"`)
		below, err2 := filepath.Rel(on.Mountpoint, path)
		if err != nil || err2 != nil || !filepath.IsAbs(dir) {
			return ""
		}
		return filepath.Join(unescaped(dir), on.Root, below)
	}
	return ""
}

// unescaped takes out the backslashes that make the next byte one of the name.
func unescaped(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountOf is the mount that a path is on, nil if that is not seen here. Nothing asks its file system.
func mountOf(path string) (on *mountinfo.Info) {
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return nil
	}
	for _, m := range above { // the last of one length is what is on top
		if on == nil || len(m.Mountpoint) >= len(on.Mountpoint) {
			on = m
		}
	}
	return on
}
