package media

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A loop device keeps its size when its file is cut short: reads beyond the new end fail, and writes make the file longer, with holes where the rest was. So at each flush the
// file is looked at, and what is missing is logged, once.

// below is the file of a loop device, or of the one that a partition is on.
type below struct {
	path string
	ino  uint64
	end  int64 // bytes of the file that the device needs
	told atomic.Bool
}

// newBelow is nil for what is no loop device, and where its file is not known, or is another by that name.
func newBelow(fd int, rdev uint64, size int64) *below {
	dir, err := filepath.EvalSymlinks("/sys/dev/block/" + strconv.FormatUint(uint64(unix.Major(rdev)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(rdev)), 10))
	if err != nil {
		return nil
	}
	start := int64(0) // of a partition, in sectors of 512
	if b, err := os.ReadFile(filepath.Join(dir, "start")); err == nil {
		start, _ = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		dir = filepath.Dir(dir)
	}
	path, err := os.ReadFile(filepath.Join(dir, "loop/backing_file"))
	if err != nil {
		return nil
	}
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return nil
	}
	w := &below{path: string(bytes.TrimSuffix(path, []byte("\n"))), ino: info.Inode, end: int64(info.Offset) + start*512 + size}
	if have, ok := w.size(); !ok || have < w.end { // a loop device's size is that of whole sectors
		return nil
	}
	return w
}

// size is how long the file is, if it is a regular one and has that name.
func (w *below) size() (int64, bool) {
	var st unix.Stat_t
	if unix.Stat(w.path, &st) != nil || st.Ino != w.ino || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, false
	}
	return st.Size, true
}

// lookBelow looks at the file.
func (m *Image) lookBelow() {
	w := m.below
	if w == nil || w.told.Load() {
		return
	}
	if have, ok := w.size(); ok && have < w.end && !w.told.Swap(true) {
		m.log.Error("the file of the loop device was cut short: what was beyond its end is gone; unmount, and copy it again as a whole, or run e2fsck on it",
			"image", m.path, "file", w.path, "size", have, "needed", w.end)
	}
}
