package main

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

// Pages of an image on a tmpfs are memory, and are charged to the control group of who writes them first: the daemon. What a program stores on the mount
// counts for the daemon, then, and where that goes beyond the group's limit the kernel ends the daemon, however little memory the daemon itself has.

// outgrows are notes on images in memory that may grow beyond what the daemon's control groups allow it yet, in bytes; math.MaxInt64 is no limit, 0 not known.
func (c *mountConfig) outgrows(room int64) (notes []string) {
	if c.ReadOnly || room == math.MaxInt64 || room == 0 {
		return nil
	}
	for _, one := range c.units() {
		var st unix.Stat_t
		var fs unix.Statfs_t
		if unix.Stat(one.Device, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || unix.Statfs(one.Device, &fs) != nil || fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
			continue
		}
		// What the file system has no room for does not become memory: it is ENOSPC. A size of 0 blocks is no limit.
		grows := st.Size - st.Blocks*512
		if fs.Blocks > 0 {
			grows = min(grows, int64(fs.Bavail)*fs.Bsize)
		}
		if grows > max(room, 0) {
			notes = append(notes, fmt.Sprintf("%q lies in memory and may take %s more, but the daemon's control group has %s left, and the kernel ends the daemon where that is not enough: "+
				"raise the group's limit (memory.max, MemoryMax of a unit, --memory of a container), or keep the image on a disk", one.Device, units.Bytes(grows), units.Bytes(max(room, 0))))
		}
	}
	return notes
}
