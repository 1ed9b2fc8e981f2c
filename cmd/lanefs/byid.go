package main

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// udev names a drive in /dev/disk/by-id by its model and serial number, and by the namespace's identifier as the kernel has it (wwid). Those of a
// function that the kernel does not have any more are made of what Identify says, and found as ID=, which mount(8) has for them.

// namesByID are the names of a namespace.
func namesByID(id *nvme.IdentifyController, ns *controller.Namespace) []string {
	drive := "nvme-" + plainID(strings.TrimRight(id.MN, " ")) + "_" + plainID(strings.TrimRight(id.SN, " "))
	wwid := func() string {
		d := ns.Descriptor
		u, g, e := d.UUID, d.NGUID, d.EUI64
		if ns.Identify != nil { // NVMe before 1.3 has no descriptors
			if g == ([16]byte{}) {
				g = ns.Identify.NGUID
			}
			if e == ([8]byte{}) {
				e = ns.Identify.EUI64
			}
		}
		switch {
		case u != [16]byte{}:
			return "uuid." + uuidText(u)
		case g != [16]byte{}:
			return "eui." + hex.EncodeToString(g[:])
		case e != [8]byte{}:
			return "eui." + hex.EncodeToString(e[:])
		}
		return fmt.Sprintf("nvme.%04x-%x-%x-%08x", id.VID, strings.TrimRight(id.SN, " "), strings.TrimRight(id.MN, " "), ns.ID)
	}
	return []string{drive, fmt.Sprintf("%s_%d", drive, ns.ID), "nvme-" + wwid()}
}

// plainID is a text as udev has it in names of links: what is not plain is an underscore.
func plainID(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("#+-.:=@_", r) || r > 0x7f {
			return r
		}
		return '_'
	}, s)
}

// sameID says whether two such names are of one drive: versions of udev differ in how many underscores stand for several blanks.
func sameID(a, b string) bool {
	parts := func(s string) []string {
		return slices.DeleteFunc(strings.Split(s, "_"), func(p string) bool { return p == "" })
	}
	return slices.Equal(parts(a), parts(b))
}

// user is who of ours has a function now, in words; empty if nobody has.
func user(function string, all []*served) string {
	for _, s := range all {
		for _, one := range splitList(s.Device) {
			if w, err := splitDevice(one); err != nil || w.Device != function {
				continue
			}
			if m := s.mounts(); len(m) > 0 {
				return fmt.Sprintf("it is mounted at %q", m[0].Mountpoint)
			}
			return fmt.Sprintf("process %d has it open for %q", s.PID, s.Dir)
		}
	}
	return ""
}
