// Package loopmount unmounts what the kernel has mounted from an image, so that the image can be looked at. An unmount by umount(2) alone does
// not say that: other mount namespaces may still have the volume. Tests of fs/ext4 and the lab's programs use it, so it needs nothing of testing.
package loopmount

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Unmount unmounts dir. Another process may keep it busy for a moment: one that lists mounts, or a child of this process
// that has not come to its execve(2). A mount that stays busy is detached, and that is an error. The volume itself stays in use as long as a mount
// namespace has a copy of the mount, which one that is made meanwhile has: so Unmount returns when its loop device has no image any more.
func Unmount(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("unmount %q: %w", dir, err)
	}
	loop := fmt.Sprintf("/sys/dev/block/%d:%d/loop/backing_file", unix.Major(st.Dev), unix.Minor(st.Dev))
	name, err := os.ReadFile(loop)
	isLoop := err == nil
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err == nil && isLoop {
			return detached(loop, string(name), end)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmount %q: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
}

// detached returns when a loop device has another image than the one with that name, or none.
func detached(loop, name string, end time.Time) error {
	for ; ; time.Sleep(5 * time.Millisecond) {
		if now, err := os.ReadFile(loop); err != nil || string(now) != name {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("another mount namespace still has the volume on %q", strings.TrimSpace(name))
		}
	}
}
