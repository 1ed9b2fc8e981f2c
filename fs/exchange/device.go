package exchange

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Descriptor is a descriptor of this process for the FUSE connection with a number, which is the minor device number of its mount.
// go-fuse has it and does not tell it. The descriptor is the caller's to close.
func Descriptor(connection uint32) (int, error) {
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1, err
	}
	unnamed, several := -1, false
	for _, d := range dir {
		n, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if to, err := os.Readlink("/proc/self/fd/" + d.Name()); err != nil || to != "/dev/fuse" {
			continue
		}
		// Its number may be another's by now, so it is looked at when it is ours.
		fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		switch at, known := connectionOf(fd); {
		case known && at == connection:
			if unnamed >= 0 {
				unix.Close(unnamed)
			}
			return fd, nil
		case !known && unnamed < 0:
			unnamed = fd
			continue
		case !known:
			several = true
		}
		unix.Close(fd)
	}
	if unnamed >= 0 && !several {
		return unnamed, nil // Linux 6.14 and 6.15 do not say the number
	}
	if unnamed >= 0 {
		unix.Close(unnamed)
	}
	return -1, fmt.Errorf("the descriptor of FUSE connection %d: %w", connection, errors.ErrUnsupported)
}

// connectionOf reads the number of a descriptor's connection, which Linux says since 6.16.
func connectionOf(fd int) (number uint32, known bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "fuse_connection:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
			return uint32(n), err == nil
		}
	}
	return 0, false
}
