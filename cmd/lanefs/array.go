package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
)

// DEVICE may be the members of an md array, in any order, separated by commas: ADDR,ADDR or IMAGE,IMAGE, or partitions of them. With pN among
// them partition N of the array is meant, which the kernel calls md0pN.

var arrayPartName = regexp.MustCompile(`^p([1-9][0-9]{0,3})$`)

// splitList takes a list of devices apart. One whose parts do not all look like devices is one name: a file's, or a label with a comma.
func splitList(arg string) []string {
	list := strings.Split(arg, ",")
	if _, err := os.Lstat(arg); err == nil || len(list) == 1 {
		return []string{arg}
	}
	for i, one := range list {
		if i > 0 && arrayPartName.MatchString(one) {
			continue
		}
		w, err := splitDevice(one)
		_, _, tag := parseTag(one)
		if _, there := os.Lstat(one); err != nil || !tag && there != nil && !pciAddress.MatchString(w.Device) && !strings.Contains(one, "/") {
			return []string{arg}
		}
	}
	return list
}

// take fills in what device is meant, and checks that it can be opened.
func (c *mountConfig) take(arg string) error {
	list := splitList(arg)
	part := 0
	if m := arrayPartName.FindStringSubmatch(list[len(list)-1]); m != nil && len(list) > 1 {
		if _, err := os.Lstat(m[0]); err != nil { // a file of that name is a member
			part, _ = strconv.Atoi(m[1])
			list = list[:len(list)-1]
		}
	}
	var all []where
	for _, one := range list {
		w, err := c.resolve(one)
		if err != nil {
			return err
		}
		if w.isArray() && len(list) == 1 && part == 0 {
			return c.take(w.Device)
		}
		if w.isArray() {
			return fmt.Errorf("%q is on an array, and no member of one: name the members, %s", one, w)
		}
		if slices.Contains(all, w) {
			return fmt.Errorf("device %q is named twice: an array has each of its members once", one)
		}
		if err := alone(all, w); err != nil {
			return err
		}
		if len(all) > 0 && isFunction(w.Device) != isFunction(all[0].Device) {
			return fmt.Errorf("%q and %q: an array's members are all PCI functions, or all images and block devices", list[0], one)
		}
		all = append(all, w)
	}
	if err := c.CheckDevice(isFunction(all[0].Device)); err != nil {
		return usage(fmt.Errorf("device %q: %w", arg, err))
	}
	if len(all) == 1 && part > 0 {
		return fmt.Errorf("device %q: p%d is a partition of an array, and one member is named; a partition of a device is %s-part%[2]d", arg, part, list[0])
	}
	if len(all) == 1 {
		c.use(all[0])
		return nil
	}
	var names []string
	for _, w := range all {
		names = append(names, w.String())
	}
	if part > 0 {
		names = append(names, fmt.Sprintf("p%d", part))
	}
	c.Device, c.Part, c.Members = strings.Join(names, ","), part, all
	return nil
}

// alone says that no other member of an array is on the same device: each has a controller of its own.
func alone(others []where, w where) error {
	if i := slices.IndexFunc(others, func(o where) bool { return o.Device == w.Device }); i >= 0 {
		return fmt.Errorf("%v and %v are on one device, and LaneFS assembles arrays whose members have a device each: have the kernel assemble it (mdadm --assemble), and mount the block device", others[i], w)
	}
	return nil
}

// use makes w the device.
func (c *mountConfig) use(w where) {
	c.Device, c.Part, c.Array, c.Members = w.Device, w.Part, w.Array, nil
	if w.NSID > 0 {
		c.NSID = w.NSID
	}
}

// units are configurations of the devices, one each.
func (c *mountConfig) units() []*mountConfig {
	if len(c.Members) == 0 {
		return []*mountConfig{c}
	}
	var all []*mountConfig
	for _, w := range c.Members {
		one := *c
		one.use(w)
		all = append(all, &one)
	}
	return all
}

// source is what the table of mounts has for the device: what fstab says, but for namespaces and tags.
func (c *mountConfig) source() string {
	if len(c.Members) > 0 {
		return c.Device
	}
	return where{Device: c.Device, Part: c.Part}.String()
}

// name is the device, its namespace and partition.
func (c *mountConfig) name() string {
	if len(c.Members) > 0 {
		return c.Device
	}
	w := where{Device: c.Device, Part: c.Part}
	if isFunction(c.Device) {
		w.NSID = c.NSID
	}
	return w.String()
}

// assemble makes an array of the units, if they are its members. One device that is a member of more is not mounted by itself: a half of a
// mirror would look like a volume. A raw device is shown as it is, unless a tag named what is on the array.
func (s *stack) assemble(cfg *mountConfig, log *slog.Logger) (err error) {
	if len(cfg.Members) == 0 {
		if cfg.Raw && !cfg.Array {
			return nil
		}
		super, err := member(s.unit.disk())
		var foreign *md.Foreign
		switch {
		case errors.As(err, &foreign):
			return fmt.Errorf("%s: %w", cfg.name(), err)
		case err != nil: // what cannot be read, or is damaged, makes no member
			log.Warn("whether the device is a member of an md array cannot be told", "device", cfg.name(), "error", oneLine(err))
			return nil
		case super == nil:
			return nil
		}
	}
	var members []md.Member
	for _, u := range s.all() {
		members = append(members, md.Member{Name: u.cfg.name(), Dev: u.disk()})
	}
	if s.array, err = md.Open(members); err == nil && len(cfg.Members) > 0 {
		s.arrayPart, err = openPart(s.array, cfg, log)
	}
	return err
}

// all are the units, in the order of the command line.
func (s *stack) all() []*unit { return append([]*unit{&s.unit}, s.others...) }

// disk is the device that a volume is on.
func (s *stack) disk() blockdev.Device {
	switch {
	case s.arrayPart != nil:
		return s.arrayPart
	case s.array != nil:
		return s.array
	}
	return s.unit.disk()
}
