package claim

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// openNode opens a block device by the kernel's name and its number. In a container /dev may lack it: then root asks a
// devtmpfs that is mounted nowhere.
func openNode(name string, dev uint64, flags int) (int, error) {
	fd, err := openIn(unix.AT_FDCWD, "/dev/"+name, dev, flags)
	if err != unix.ENOENT {
		return fd, err
	}
	at, err2 := detached("devtmpfs")
	if err2 != nil {
		return -1, err
	}
	defer unix.Close(at)
	return openIn(at, name, dev, flags)
}

// openIn opens a block device that must have number dev. ENOENT: it is not there, or another's.
func openIn(at int, path string, dev uint64, flags int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(at, path, &st, 0); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != dev {
		return -1, unix.ENOENT
	}
	fd, err := unix.Openat(at, path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != dev {
		unix.Close(fd)
		return -1, unix.ENOENT
	}
	return fd, nil
}

// detached mounts a file system that is in no mount namespace.
func detached(fstype string) (int, error) {
	fd, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen %s: %w", fstype, err)
	}
	defer unix.Close(fd)
	if err := unix.FsconfigCreate(fd); err != nil {
		return -1, fmt.Errorf("fsconfig %s: %w", fstype, err)
	}
	return unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
}
