package doctor

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/fs/uring"
)

// basics are what every mount needs, one of an image file too.
func (x *examiner) basics() {
	x.add(x.fuse())
	x.add(x.maxPages())
	x.add(x.ioURing())
	x.add(x.fusermount())
	x.add(x.memlock())
}

func (x *examiner) fuse() Finding {
	f := Finding{Area: Basics, What: "FUSE", Needed: true, Found: "/dev/fuse opens"}
	fd, err := os.OpenFile(x.path("dev/fuse"), os.O_RDWR, 0)
	switch {
	case os.IsNotExist(err):
		f.Found, f.Remedy = "there is no /dev/fuse", "modprobe fuse; give a container /dev/fuse"
	case err != nil:
		f.Found, f.Remedy = err.Error(), "chmod 666 /dev/fuse, as udev does; give a container the device"
	default:
		fd.Close()
		if f.OK = !x.asRoot() || x.capable(unix.CAP_SYS_ADMIN); !f.OK {
			f.Found += ", but root has no CAP_SYS_ADMIN here, to mount"
			f.Remedy = "give the container CAP_SYS_ADMIN"
		}
	}
	return f
}

// maxPages looks at the largest FUSE request.
func (x *examiner) maxPages() Finding {
	const path, want = "proc/sys/fs/fuse/max_pages_limit", 256
	f := Finding{Area: Basics, What: "FUSE request size"}
	if !x.exists(path) {
		f.OK, f.Found = true, "up to 1 MiB (the kernel has no /"+path+")"
		return f
	}
	n, ok := x.number(path)
	f.Found = fmt.Sprintf("max_pages_limit is %d: %s", n, units.Bytes(n*int64(os.Getpagesize())))
	if f.OK = ok && n >= want; !f.OK {
		f.Remedy = fmt.Sprintf("echo %d > /%s", want, path)
	}
	return f
}

// ioURing looks at FUSE over io_uring: at the settings, then whether a ring can be made.
func (x *examiner) ioURing() Finding {
	f := Finding{Area: Basics, What: "FUSE over io_uring", OK: true, Found: "offered: -o io_uring=on takes it"}
	if x.rings.Auto {
		f.Found = "offered, and taken"
	}
	err := uring.Check(string(x.root))
	if err == nil && x.rings.Try != nil {
		err = x.rings.Try()
	}
	var why *uring.Unavailable
	switch {
	case errors.As(err, &why):
		f.OK, f.Found, f.Remedy = false, why.Found()+": requests come by /dev/fuse", why.Remedy
	case err != nil:
		f.OK, f.Found = false, err.Error()+": requests come by /dev/fuse"
	}
	return f
}

func (x *examiner) fusermount() Finding {
	f := Finding{Area: Basics, What: "fusermount3"}
	for _, dir := range []string{"usr/local/bin", "usr/bin", "bin"} {
		if p := dir + "/fusermount3"; x.exists(p) {
			f.OK, f.Found = true, "/"+p
			return f
		}
	}
	f.Found, f.Remedy = "not installed: only root can mount", "apt-get install fuse3"
	return f
}

// wantLocked is how much a mount of a drive may pin (blockdev's bound) beside its queues.
const wantLocked = 1<<30 + 64<<20

// memlock is the limit of what a process may pin. It does not apply to CAP_IPC_LOCK, which root's daemon has where root has it.
func (x *examiner) memlock() Finding {
	f := Finding{Area: Basics, What: "locked memory limit"}
	limit, ok := x.lockedLimit()
	switch {
	case !ok:
		f.Found = "cannot be read from /proc/self/limits"
		return f
	case limit == math.MaxInt64:
		f.Found = "unlimited"
	default:
		f.Found = units.Bytes(limit)
	}
	exempt := x.asRoot() && x.capable(unix.CAP_IPC_LOCK)
	if exempt {
		f.Found += "; root's mounts are exempt"
	}
	if f.OK = exempt || limit >= wantLocked; !f.OK {
		f.Remedy = "a drive's mount pins up to 1 GiB: raise it (ulimit -l, /etc/security/limits.conf, or LimitMEMLOCK in a unit), or mount with a smaller -o pinned=; image files do not need it"
	}
	return f
}

func (x *examiner) lockedLimit() (int64, bool) {
	for line := range strings.Lines(x.text("proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max locked memory"); ok {
			soft := strings.Fields(rest)
			if len(soft) == 0 {
				return 0, false
			}
			if soft[0] == "unlimited" {
				return math.MaxInt64, true
			}
			n, err := strconv.ParseInt(soft[0], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// capable says whether the examiner has a capability. Where that cannot be seen it has.
func (x *examiner) capable(capability uint) bool {
	for line := range strings.Lines(x.text("proc/self/status")) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err != nil || set>>capability&1 != 0
		}
	}
	return true
}

// asRoot says whether the examiner's effective uid is 0.
func (x *examiner) asRoot() bool {
	for line := range strings.Lines(x.text("proc/self/status")) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "Uid:" {
			return f[2] == "0"
		}
	}
	return false
}
