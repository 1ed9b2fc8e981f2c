package main

import (
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strconv"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/partition"
)

// A function or an image file may have partitions: DEVICE-partN names one, as udev's links do, and ADDR/NSID-partN one of a namespace. The
// kernel has names of its own for those of a block device.

var (
	partName     = regexp.MustCompile(`^(.+)-part([1-9][0-9]{0,3})$`)
	functionName = regexp.MustCompile(`^(.+)/([1-9][0-9]{0,9})$`)
)

// where is what of a device is meant.
type where struct {
	device string
	nsid   uint32 // 0: not said
	part   int    // 0: all of it
}

// splitDevice takes a DEVICE argument apart. A file of that name is that file.
func splitDevice(arg string) (where, error) {
	w := where{device: arg}
	if _, err := os.Lstat(arg); err == nil {
		return w, nil
	}
	if m := partName.FindStringSubmatch(arg); m != nil {
		w.device = m[1]
		w.part, _ = strconv.Atoi(m[2])
	}
	if m := functionName.FindStringSubmatch(w.device); m != nil && pciAddress.MatchString(m[1]) {
		n, err := strconv.ParseUint(m[2], 10, 32)
		if err != nil {
			return w, fmt.Errorf("device %q: namespace %s: %w", arg, m[2], err)
		}
		w.device, w.nsid = m[1], uint32(n)
	}
	if pciAddress.MatchString(w.device) {
		return w, nil
	}
	if st, err := os.Stat(w.device); w.part > 0 && (err != nil || !st.Mode().IsRegular()) {
		return where{device: arg}, nil // what there is not is said of the whole name
	}
	return w, nil
}

// take fills in what of a device is meant.
func (c *mountConfig) take(arg string) (device string, err error) {
	w, err := splitDevice(arg)
	if err != nil {
		return "", err
	}
	if w.nsid > 0 && c.NSID > 0 && c.NSID != w.nsid {
		return "", fmt.Errorf("device %q names namespace %d, and nsid= namespace %d", arg, w.nsid, c.NSID)
	}
	if w.nsid > 0 {
		c.NSID = w.nsid
	}
	c.Part = w.part
	return w.device, nil
}

// openPart opens the partition that is meant.
func (s *stack) openPart(cfg *mountConfig, log *slog.Logger) error {
	if cfg.Part == 0 {
		return nil
	}
	t, err := partition.Read(s.dev)
	if err != nil {
		return fmt.Errorf("%s-part%d: %w", cfg.Device, cfg.Part, err)
	}
	if t.Damage != "" {
		log.Warn("the first partition table is damaged, its copy at the end of the disk is used; gdisk repairs it", "device", cfg.Device, "damage", t.Damage)
	}
	p, err := t.Find(cfg.Part)
	if err != nil {
		return fmt.Errorf("%s: %w", cfg.Device, err)
	}
	s.part = partition.Open(s.dev, p)
	return nil
}

// disk is the device that a volume is on.
func (s *stack) disk() blockdev.Device {
	if s.part != nil {
		return s.part
	}
	return s.dev
}
