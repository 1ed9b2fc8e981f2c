package media

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// How much memory a process may have is said by its control groups, of which each counts what the groups below it have, too. Both versions of
// control groups are looked at; a container sees its own group as the root.

// MemoryRoom is how many bytes of memory the control groups of this process allow it yet, math.MaxInt64 without a limit, 0 where that is not known.
func MemoryRoom() int64 { return room("/proc/self/cgroup", "/sys/fs/cgroup") }

// MemoryLimit is how many bytes of memory this process may have together with all else in its control groups: the least of the groups' limits, those
// beyond which the kernel slows it down (memory.high) included, and of the machine's memory; math.MaxInt64 where none of it is known.
func MemoryLimit() int64 {
	most := limit("/proc/self/cgroup", "/sys/fs/cgroup")
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		most = min(most, int64(info.Totalram)*int64(info.Unit))
	}
	return most
}

// room is how many bytes of memory the cgroups of a process allow it yet. list is its /proc/PID/cgroup; the hierarchies are mounted below root. Huge pages
// are charged to who asks for them, where the small ones were charged to who wrote the file.
func room(list, root string) int64 {
	least := int64(math.MaxInt64)
	err := groups(list, root, func(dir, limit, usage string) error {
		most, err := number(filepath.Join(dir, limit))
		if err == nil && most < math.MaxInt64 {
			var used int64
			used, err = number(filepath.Join(dir, usage))
			least = min(least, most-used)
		}
		if errors.Is(err, fs.ErrNotExist) { // a container does not see the groups around it, and the root has no memory.max
			return nil
		}
		return err
	})
	if err != nil {
		return 0
	}
	return least
}

// limit is the least limit of the cgroups of a process, of those that can be read; list and root are as for room.
func limit(list, root string) int64 {
	least := int64(math.MaxInt64)
	_ = groups(list, root, func(dir, limit, _ string) error {
		for _, file := range []string{limit, "memory.high"} { // version 1 has no memory.high
			if most, err := number(filepath.Join(dir, file)); err == nil {
				least = min(least, most)
			}
		}
		return nil
	})
	return least
}

// groups calls f for the memory cgroup of a process and for each around it, with the names of the files that have limit and usage, until f fails.
func groups(list, root string, f func(dir, limit, usage string) error) error {
	b, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	group, limit, usage := "/", "memory.max", "memory.current"
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			return errors.New("no list of control groups")
		}
		if slices.Contains(strings.Split(f[1], ","), "memory") { // version 1
			root, group, limit, usage = filepath.Join(root, "memory"), f[2], "memory.limit_in_bytes", "memory.usage_in_bytes"
			break
		}
		if f[0] == "0" {
			group = f[2]
		}
	}
	for group = filepath.Clean("/" + group); ; group = filepath.Dir(group) {
		if err := f(filepath.Join(root, group), limit, usage); err != nil || group == "/" {
			return err
		}
	}
}

// number reads a file with a number; "max" is the largest, as is version 1's.
func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	text := strings.TrimSpace(string(b))
	if text == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil && n >= math.MaxInt64-1<<20 {
		n = math.MaxInt64
	}
	return n, err
}
