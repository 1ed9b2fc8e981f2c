package claim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// inUse names the user of what path stands on, as well as can be seen from here: d is the device that was found in use, or
// nothing if it was bytes that are locked.
func (s system) inUse(path string, w *way, d device) *InUse {
	in := &InUse{Path: path}
	mounts := allMounts()
	if mount := laneFS(mounts, w, s); mount != "" {
		in.By = mount
		return in
	}
	if swap := s.swapOn(w); swap != "" {
		return asSwap(path, swap)
	}
	if d.name == "" {
		return in
	}
	in.By = d.path()
	var own unix.Stat_t
	if unix.Stat(path, &own) == nil && own.Mode&unix.S_IFMT == unix.S_IFBLK && own.Rdev == d.dev {
		in.By = "another program" // which has it open exclusively
	}
	switch at, on := mountedAt(mounts, s.relatives(d.dev)), s.holders(d.dev); {
	case at != "" && in.By != d.path():
		in.By = "the kernel, which has it mounted " + at
	case at != "":
		in.By += ", which is mounted " + at
	case len(on) > 0:
		in.By = strings.Join(on, ", ") + ", on " + d.path()
		in.Remedy = "take that away first"
	case in.By == d.path() && exists(filepath.Join(s.sys, "block", d.name, "loop")):
		in.Remedy = fmt.Sprintf("detach it first (losetup -d %s)", d.path())
	}
	return in
}

// space is the mounts of one mount namespace.
type space struct {
	own    bool
	pid    string // of a process there
	mounts []*mountinfo.Info
}

// allMounts is what is mounted, by mount namespace, our own first. Of other users' processes it is not known.
func allMounts() (all []space) {
	seen := map[string]bool{}
	read := func(dir string) {
		name, err := os.Readlink(filepath.Join(dir, "ns/mnt"))
		if err != nil || seen[name] {
			return
		}
		f, err := os.Open(filepath.Join(dir, "mountinfo"))
		if err != nil {
			return
		}
		defer f.Close()
		if m, err := mountinfo.GetMountsFromReader(f, nil); err == nil {
			seen[name] = true
			all = append(all, space{len(all) == 0, filepath.Base(dir), m})
		}
	}
	read("/proc/self")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		read(dir)
	}
	return all
}

func (s space) at(m *mountinfo.Info) string {
	if s.own {
		return fmt.Sprintf("at %q", m.Mountpoint)
	}
	return fmt.Sprintf("at %q in the mount namespace of process %s", m.Mountpoint, s.pid)
}

// mountedAt says where the kernel has one of the block devices mounted.
func mountedAt(all []space, devs []uint64) string {
	for _, s := range all {
		for _, m := range s.mounts {
			if slices.Contains(devs, unix.Mkdev(uint32(m.Major), uint32(m.Minor))) {
				return s.at(m)
			}
		}
	}
	return ""
}

// laneFS names a LaneFS mount of bytes that the way leads to.
func laneFS(all []space, w *way, s system) string {
	if w == nil {
		return ""
	}
	for _, space := range all {
		for _, m := range space.mounts {
			if m.FSType != "fuse.lanefs" || m.Root != "/" || !filepath.IsAbs(m.Source) {
				continue
			}
			for _, path := range images(m.Source) {
				if e, err := s.bottoms(path); err == nil && overlap(e, w.extents) {
					return fmt.Sprintf("the LaneFS mount of %q %s", m.Source, space.at(m))
				}
			}
		}
	}
	return ""
}

// images are the files and block devices that the source of a LaneFS mount names: one, the members of an array, or what a partition is on.
func images(source string) []string {
	if _, err := stat(source); err == nil || errors.Is(err, errNoAnswer) {
		return []string{source}
	}
	all := strings.Split(source, ",")
	for i, one := range all {
		if at := strings.LastIndex(one, "-part"); at > 0 {
			if _, err := stat(one); err != nil {
				all[i] = one[:at]
			}
		}
	}
	return all
}

// bottoms is what an image or a block device stands on.
func (s system) bottoms(path string) ([]extent, error) {
	st, err := stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		if !mayHang(path) {
			if real, err := filepath.EvalSymlinks(path); err == nil {
				path = real
			}
		}
		return bottomOf(st.Dev, st.Ino, 0, toEnd, path), nil
	}
	w, err := s.follow(st.Rdev)
	return w.extents, err
}

// relatives are a device, its disk and its partitions: a user of one keeps the others from being claimed.
func (s system) relatives(dev uint64) []uint64 {
	devs := []uint64{dev}
	dir, err := filepath.EvalSymlinks(filepath.Join(s.sys, "dev/block", number(dev)))
	if err != nil {
		return devs
	}
	if exists(filepath.Join(dir, "partition")) {
		if disk, err := deviceNumber(filepath.Dir(dir)); err == nil {
			devs = append(devs, disk)
		}
	}
	parts, _ := filepath.Glob(filepath.Join(dir, "*/partition"))
	for _, p := range parts {
		if n, err := deviceNumber(filepath.Dir(p)); err == nil {
			devs = append(devs, n)
		}
	}
	return devs
}

// holders are the devices that the kernel has stacked on one.
func (s system) holders(dev uint64) (names []string) {
	for _, d := range s.relatives(dev) {
		list, _ := os.ReadDir(filepath.Join(s.sys, "dev/block", number(d), "holders"))
		for _, e := range list {
			names = append(names, "/dev/"+e.Name())
		}
	}
	return names
}
