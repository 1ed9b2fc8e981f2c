package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/partition"
)

// A function, an image file or a block device may have partitions: DEVICE-partN names one, as udev's links do, and ADDR/NSID-partN one of a namespace. Where the
// kernel shows that of a block device, it is the kernel's.

var (
	partName     = regexp.MustCompile(`^(.+)-part([1-9][0-9]{0,3})$`)
	functionName = regexp.MustCompile(`^(.+)/([1-9][0-9]{0,9})$`)
)

// where is what of a device is meant.
type where struct {
	Device string // of an array that a tag has found: its members, and pN behind them, as on the command line
	NSID   uint32 `json:",omitempty"` // 0: not said
	Part   int    `json:",omitempty"` // 0: all of it
	Array  bool   `json:",omitempty"` // the array is meant of which it is all, and that a tag has found
}

// String is DEVICE[/NSID][-partN].
func (w where) String() string {
	s := w.Device
	if w.NSID > 0 {
		s = fmt.Sprintf("%s/%d", s, w.NSID)
	}
	if w.Part > 0 {
		s = fmt.Sprintf("%s-part%d", s, w.Part)
	}
	return s
}

// isArray says whether it is an array, or a partition of one, that a tag has found.
func (w where) isArray() bool { return w.Part == 0 && len(splitList(w.Device)) > 1 }

// splitDevice takes a DEVICE argument apart. A file of that name is that file.
func splitDevice(arg string) (where, error) {
	w := where{Device: arg}
	if _, err := os.Lstat(arg); err == nil {
		return w, nil
	}
	if m := partName.FindStringSubmatch(arg); m != nil {
		w.Device = m[1]
		w.Part, _ = strconv.Atoi(m[2])
	}
	if m := functionName.FindStringSubmatch(w.Device); m != nil && pciAddress.MatchString(m[1]) {
		n, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			return w, fmt.Errorf("device %q: namespace %s: %w", arg, m[2], err)
		}
		w.Device, w.NSID = m[1], uint32(n)
	}
	if pciAddress.MatchString(w.Device) {
		return w, nil
	}
	if st, err := os.Stat(w.Device); w.Part > 0 && (err != nil || !st.Mode().IsRegular() && !isBlock(st)) {
		return where{Device: arg}, nil // what there is not is said of the whole name
	}
	return w, nil
}

// resolve finds what of a device an argument means, and checks that it can be opened.
func (c *mountConfig) resolve(arg string) (w where, err error) {
	if _, err := os.Lstat(arg); err != nil {
		arg = unlink(arg)
	}
	if w, err = splitDevice(arg); err != nil {
		return w, err
	}
	if name, value, tag := parseTag(w.Device); tag {
		if _, err := os.Lstat(w.Device); err != nil {
			if w, err = findTag(name, value); err != nil || w.isArray() {
				return w, err
			}
		}
	}
	if w.NSID > 0 && c.NSID > 0 && c.NSID != w.NSID {
		return w, fmt.Errorf("device %q names namespace %d, and nsid= namespace %d", arg, w.NSID, c.NSID)
	}
	if w.Device, err = resolveDevice(w.Device); err != nil {
		return w, err
	}
	return machine{}.shown(w), nil
}

// shown is a partition of a block device as the kernel shows it, so that the others stay free; what it does not show stays as it is.
func (m machine) shown(w where) where {
	var st unix.Stat_t
	if w.Part == 0 || unix.Stat(w.Device, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return w
	}
	disk, err := filepath.EvalSymlinks(m.path("sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))))
	if err != nil {
		return w
	}
	if p, ok := m.partitions(filepath.Base(disk))[w.Part]; ok {
		return where{Device: m.node(p.name)}
	}
	return w
}

// openPart opens the partition of a disk that is meant; nil: all of the disk is.
func openPart(d blockdev.Device, cfg *mountConfig, log *slog.Logger) (*partition.Device, error) {
	if cfg.Part == 0 {
		return nil, nil
	}
	t, err := partition.Read(d)
	if err != nil {
		return nil, fmt.Errorf("%s: partition %d: %w; without it all of the device is meant", cfg.name(), cfg.Part, err)
	}
	if t.Damage != "" {
		log.Warn("the first partition table is damaged, its copy at the end of the disk is used; gdisk repairs it", "device", cfg.Device, "damage", t.Damage)
	}
	p, err := t.Find(cfg.Part)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.Device, err)
	}
	if err := ofMember(d); err != nil && !cfg.Raw {
		return nil, fmt.Errorf("%s: %w; what looks like a partition of it is one of the array (wipefs, if there is no such array any more)", cfg.Device, err)
	}
	return partition.Open(d, p), nil
}

// disk is the unit's namespace, or the partition of it that is meant.
func (u *unit) disk() blockdev.Device {
	if u.part != nil {
		return u.part
	}
	return u.dev
}
