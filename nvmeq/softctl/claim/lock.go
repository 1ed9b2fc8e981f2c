package claim

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lock keeps others from a range of the file or device behind fd. The lock belongs to the open file description: so it
// works between two of one process too, and ends with the last descriptor, however the process ends. A lock for reading lets
// other readers in. false: there is a lock that forbids it.
func lock(fd int, off, end int64, write bool) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_RDLCK, Whence: io.SeekStart, Start: off}
	if end != toEnd {
		lk.Len = end - off
	}
	if write {
		lk.Type = unix.F_WRLCK
	}
	err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lk)
	if err == unix.EAGAIN || err == unix.EACCES {
		return false, nil
	}
	return err == nil, err
}

// lockSeen says whether any process of the system has a lock on a range of a file, as /proc/locks has it. It is for files that cannot be
// opened here. A reader's lock does not count for a reader.
func lockSeen(e extent, write bool) (bool, error) {
	f, err := os.Open("/proc/locks")
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if conflicts(lines.Text(), e, write) {
			return true, nil
		}
	}
	return false, lines.Err()
}

// conflicts reads a line of /proc/locks: "1: OFDLCK ADVISORY  WRITE -1 fe:00:1234 0 EOF".
func conflicts(line string, e extent, write bool) bool {
	f := strings.Fields(line)
	if len(f) != 8 || f[1] != "OFDLCK" && f[1] != "POSIX" || f[3] != "WRITE" && !write {
		return false
	}
	var major, minor uint32
	var ino uint64
	if _, err := fmt.Sscanf(f[5], "%x:%x:%d", &major, &minor, &ino); err != nil || unix.Mkdev(major, minor) != e.On.Dev || ino != e.On.Ino {
		return false
	}
	var from, last int64
	if _, err := fmt.Sscan(f[6], &from); err != nil {
		return false
	}
	if f[7] == "EOF" {
		last = toEnd
	} else if _, err := fmt.Sscan(f[7], &last); err != nil {
		return false
	}
	return from < e.End && e.Off <= last
}
