package uring

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// spareThreads are those that Go's runtime and the rest of the program may need besides: some for each processor, of which keepers and a crowd of
// requests (Options.Keepers, Options.Crowded) have the runtime make more.
func spareThreads(cpus int) int { return 16 + cpus + DefaultKeepers(cpus) + DefaultServers(cpus) }

// Try says why rings cannot be had here, as an Unavailable where there is something to say; nil: they can. It makes as many as a mount, for
// they count as locked memory, and closes them.
func Try() error {
	if err := Check("/"); err != nil {
		return err
	}
	online, err := cpus("online")
	if err != nil {
		return err
	}
	servers := len(online) * DefaultServers(len(online))
	if err := room("/", servers+spareThreads(len(online))); err != nil {
		return err
	}
	for range servers {
		r, err := newRing(commands)
		if err != nil {
			return because(err)
		}
		defer r.Close()
	}
	limit := unix.Rlimit{}
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && uint64(servers+mountFiles+spareFiles) > limit.Cur {
		return tooFewFiles(limit.Cur)
	}
	return nil
}

const (
	// spareFiles is how many descriptors a mount may need besides those that are open when its rings are: for /dev/fuse, commands, programs, metrics, and
	// what is read in /proc. With fewer a mount on rings failed where one by /dev/fuse did not, or could not be unmounted.
	spareFiles = 32
	// mountFiles are those that a mount of an image has open then, the rings' left out.
	mountFiles = 16
)

// RoomForFiles says whether a mount may open the descriptors that it needs besides those of its rings, which are open.
func RoomForFiles() error {
	limit := unix.Rlimit{}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil && !errors.Is(err, unix.EMFILE) {
		return nil
	}
	if err == nil && uint64(len(open)+spareFiles) <= limit.Cur {
		return nil
	}
	return tooFewFiles(limit.Cur)
}

func tooFewFiles(limit uint64) error {
	return &Unavailable{Why: fmt.Sprintf("with the rings' there are too few descriptors for the mount: the process may have %d", limit), Remedy: "raise ulimit -n"}
}

// RoomForThread says whether the process may have one more thread, as room does.
func RoomForThread() error { return room("/", 1+roomLeft) }

// roomLeft is how many threads RoomForThread leaves for the rest of the program.
const roomLeft = 8

// room says whether the process may have n more threads, all told. It is asked before there are any, for Go's runtime ends the process when
// the kernel refuses one.
func room(root string, n int) error {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
				if err := groupRoom(root, f[1], f[2], n); err != nil {
					return err
				}
			}
		}
	}
	var limit unix.Rlimit
	if os.Geteuid() == 0 || unix.Getrlimit(unix.RLIMIT_NPROC, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return nil // it does not apply to root
	}
	if have := threadsOf(root, uint32(os.Getuid())); uint64(have+n) > limit.Cur {
		return &Unavailable{Why: fmt.Sprintf("the user has %d threads, and may have %d; %d more are needed", have, limit.Cur, n), Remedy: "raise ulimit -u"}
	}
	return nil
}

// groupRoom looks at the pids controller of a control group and those above it: "" is the one hierarchy of version 2.
func groupRoom(root, controllers, group string, n int) error {
	var base string
	switch {
	case controllers == "":
		base = "sys/fs/cgroup"
	case controllers == "pids":
		base = "sys/fs/cgroup/pids"
	default:
		return nil
	}
	number := func(dir, name string) (int, bool) {
		b, err := os.ReadFile(filepath.Join(root, base, dir, name))
		if err != nil {
			return 0, false
		}
		v, err := strconv.Atoi(strings.TrimSpace(string(b))) // "max" is none
		return v, err == nil
	}
	for dir := filepath.Clean("/" + group); ; dir = filepath.Dir(dir) {
		most, limited := number(dir, "pids.max")
		if have, ok := number(dir, "pids.current"); limited && ok && have+n > most {
			return &Unavailable{Why: fmt.Sprintf("the control group %s has %d threads, and may have %d; %d more are needed", dir, have, most, n),
				Remedy: "raise pids.max: --pids-limit of a container, TasksMax of a unit"}
		}
		if dir == "/" {
			return nil
		}
	}
}

// threadsOf counts a user's threads.
func threadsOf(root string, uid uint32) (n int) {
	all, _ := filepath.Glob(filepath.Join(root, "proc/[0-9]*"))
	for _, dir := range all {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil || st.Uid != uid {
			continue
		}
		tasks, _ := os.ReadDir(filepath.Join(dir, "task"))
		n += len(tasks)
	}
	return n
}
