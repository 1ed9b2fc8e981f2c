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
	loop := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	now := imageOf(loop)
	for end := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err == nil {
			return detached(loop, now, end)
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return errors.Join(fmt.Errorf("unmount %q: %w", dir, err), unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
}

// attachment is an image on a loop device, zero where there is none. Every memfd has the name that it was made with, so the name alone does not
// say that it is the same image: the kernel (5.15 and later) gives a device another number whenever an image is attached.
type attachment struct{ name, number string }

func imageOf(loop string) attachment {
	name, err := os.ReadFile(loop + "/loop/backing_file")
	if err != nil {
		return attachment{}
	}
	number, _ := os.ReadFile(loop + "/diskseq")
	return attachment{strings.TrimSpace(string(name)), strings.TrimSpace(string(number))}
}

// detached returns when the loop device in the folder loop of sysfs does not have that image any more.
func detached(loop string, image attachment, end time.Time) error {
	for ; image.name != "" && imageOf(loop) == image; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("another mount namespace still has the volume on %q", image.name)
		}
	}
	return nil
}
