package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// A volume cannot lie on blocks that are larger than its own, with LaneFS as little as with the kernel. How they become smaller
// depends on what they are of.

// withSmallerBlocks is err with what is to be done to have blocks of size bytes at most.
func (c *mountConfig) withSmallerBlocks(err error, size int) error {
	for _, one := range c.units() {
		if remedy := one.smallerBlocks(size); remedy != "" {
			return fmt.Errorf("%w; %s", err, remedy)
		}
	}
	return err
}

// smallerBlocks says that for one device, empty where its blocks are not too large.
func (c *mountConfig) smallerBlocks(size int) string {
	if isFunction(c.Device) {
		return fmt.Sprintf("the drive needs a format with blocks of %d at most (nvme format, which erases it)", size)
	}
	if c.LBA > size && media.BlockSize(c.Device) <= size {
		return fmt.Sprintf("mount it with lba=%d at most", size)
	}
	if media.BlockSize(c.Device) <= size {
		return ""
	}
	const otherwise = "copy the volume to an image and mount that, or make one with larger blocks (mkfs.ext4 -b)"
	var st unix.Stat_t
	if unix.Stat(c.Device, &st) != nil {
		return otherwise
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return otherwise
	}
	if unix.Access(filepath.Join(dir, "partition"), unix.F_OK) == nil {
		dir = filepath.Dir(dir)
	}
	switch disk := filepath.Base(dir); {
	case strings.HasPrefix(disk, "loop"):
		return fmt.Sprintf("mount what the loop device is on, or give that smaller sectors (losetup --sector-size 512 /dev/%s)", disk)
	case strings.HasPrefix(disk, "nvme"):
		return "the drive needs a format with smaller blocks (nvme format, which erases it); or " + otherwise
	default:
		return otherwise
	}
}
