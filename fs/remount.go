package fs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Remount changes what the kernel enforces at the mount on dir: whether it is read-only, and the flags that options name. The kernel
// writes out what it has in memory first. ErrBusy: it cannot become read-only, because files are open for writing. Needs root.
func Remount(dir string, readOnly bool, options []string) error {
	flags, _, err := mountFlags(options)
	if err != nil {
		return err
	}
	flags &^= volumeFlags // of the volume, which does not change
	if readOnly {
		flags |= unix.MS_RDONLY
	}
	err = unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "")
	if errors.Is(err, unix.EBUSY) {
		return ErrBusy
	}
	if err != nil {
		return fmt.Errorf("remount %q: %w", dir, err)
	}
	return nil
}
