package claim

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A file that is swap space can be opened and locked by anybody: only writing to it fails. A block device that is swap space is open exclusively.

// swapOn is the swap space that lies in bytes which the way leads to, by the name that the kernel has for it; empty if there is none.
func (s system) swapOn(w *way) string {
	if w == nil {
		return ""
	}
	b, _ := os.ReadFile("/proc/swaps")
	for _, path := range swaps(string(b)) {
		st, err := stat(path)
		if err != nil {
			continue // another mount namespace's
		}
		on := []extent{{On: bottom{Dev: st.Dev, Ino: st.Ino}, End: toEnd}}
		if st.Mode&unix.S_IFMT == unix.S_IFBLK {
			below, err := s.follow(st.Rdev)
			if err != nil {
				continue
			}
			on = below.extents
		}
		if overlap(on, w.extents) {
			return path
		}
	}
	return ""
}

// swaps are the names in /proc/swaps, whose first line is a heading. What would end a name there is \nnn.
func swaps(text string) (paths []string) {
	lines := strings.Split(text, "\n")
	for _, line := range lines[1:] {
		name, _, _ := strings.Cut(line, " ")
		path, err := strconv.Unquote(`"` + strings.ReplaceAll(name, `"`, `\"`) + `"`)
		if err == nil && strings.HasPrefix(path, "/") {
			paths = append(paths, path)
		}
	}
	return paths
}

// asSwap is the error of what is swap space.
func asSwap(path, swap string) *InUse {
	return &InUse{Path: path, By: "the kernel, as swap space", Remedy: "swapoff " + swap + " first"}
}
