package main

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
)

// stores says where there is no room for the mount's images: which file systems hold them, and how much those have free. It is empty of drives and block devices.
func (c *mountConfig) stores() string {
	var all []string
	for _, one := range c.units() {
		if text := storeOf(one.Device); text != "" {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// withStores adds that to an error of which a lack of room is the reason.
func (c *mountConfig) withStores(err error) error {
	if text := c.stores(); text != "" {
		return fmt.Errorf("%w; %s", err, text)
	}
	return err
}

// storeOf is stores of one image.
func storeOf(image string) string {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Stat(image, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || unix.Statfs(image, &fs) != nil {
		return ""
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && limit.Cur < uint64(st.Size) {
		return fmt.Sprintf("%q has %s, and the daemon may write to the first %s of a file: raise that limit (ulimit -f, or LimitFSIZE of a unit)",
			image, units.Bytes(st.Size), units.Bytes(int64(limit.Cur)))
	}
	where := ""
	if at := mountOf(image); at != nil {
		where = fmt.Sprintf(" at %q, of type %s,", at.Mountpoint, at.FSType)
	}
	return fmt.Sprintf("the file system%s that holds %q has %s free", where, image, units.Bytes(int64(fs.Bavail)*fs.Bsize))
}

// mountOf is the mount that a file is on, nil if it is not known.
func mountOf(path string) *mountinfo.Info {
	var st unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st) != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return nil
	}
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return uint64(m.ID) != st.Mnt_id, false })
	if err != nil || len(found) != 1 {
		return nil
	}
	return found[0]
}
