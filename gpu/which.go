package gpu

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Listed is a device as a driver lists it.
type Listed struct {
	PCI  string // 0000:c1:00.0
	UUID string // GPU-…, or MIG-… of a part of a GPU (Multi-Instance GPU); empty: not known
}

var (
	pciAddress = regexp.MustCompile(`^(?i:[0-9a-f]{4,8}:)?(?i:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$`)
	uuid       = regexp.MustCompile(`^(?i:GPU|MIG)-[0-9A-Za-z][-/0-9A-Za-z]*$`)
)

// IsPCIAddress reports whether which is a PCI address, with or without its domain.
func IsPCIAddress(which string) bool { return pciAddress.MatchString(which) }

// IsUUID reports whether which is a device's UUID, or the beginning of one.
func IsUUID(which string) bool { return uuid.MatchString(which) }

// IsMIG reports whether a UUID is that of a MIG instance. Of those CUDA shows a process one only, the first, or what CUDA_VISIBLE_DEVICES names.
func IsMIG(uuid string) bool { return len(uuid) > 4 && strings.EqualFold(uuid[:4], "MIG-") }

// Ordinal is the number that which is, if it is one.
func Ordinal(which string) (int, bool) {
	n, err := strconv.ParseUint(which, 10, 16)
	return int(n), err == nil
}

// Find is the ordinal of the device that which names, of n that a driver shows: an ordinal, what Choose takes, or nothing for the first. listed says
// what names the device with an ordinal; errors say who shows the devices, and what makes them visible.
func Find(which string, n int, listed func(ordinal int) (Listed, error), who, visible string) (int, error) {
	ordinal, ok := Ordinal(which)
	if which != "" && !ok {
		all := make([]Listed, n)
		var err error
		for i := range all {
			if all[i], err = listed(i); err != nil {
				return 0, err
			}
		}
		if ordinal, err = Choose(which, all); err != nil {
			return 0, fmt.Errorf("%w (%s)", err, visible)
		}
	}
	if ordinal >= n {
		return 0, fmt.Errorf("device %d does not exist: %s shows %d (%s)", ordinal, who, n, visible)
	}
	return ordinal, nil
}

// Choose is the ordinal of the device that which names by its PCI address, or by its UUID or a beginning of it that no other has. Case does not matter.
func Choose(which string, all []Listed) (int, error) {
	found := -1
	for i, l := range all {
		var same bool
		if IsPCIAddress(which) {
			same = SameDevice(which, l.PCI)
		} else {
			same = len(which) <= len(l.UUID) && strings.EqualFold(which, l.UUID[:len(which)])
		}
		if same && found >= 0 {
			return 0, fmt.Errorf("%q is the beginning of two devices' names: %s", which, list(all))
		}
		if same {
			found = i
		}
	}
	if found < 0 {
		return 0, fmt.Errorf("no device is %q; there are %s", which, list(all))
	}
	return found, nil
}

func withDomain(address string) string {
	if strings.Count(address, ":") == 1 {
		return "0000:" + address
	}
	for len(address) > len("0000:00:00.0") && address[0] == '0' {
		address = address[1:]
	}
	return address
}

// SameDevice reports whether two names of Facts.Identity's kind, of whatever driver's spelling, are one device's.
func SameDevice(a, b string) bool {
	if IsPCIAddress(a) && IsPCIAddress(b) {
		a, b = withDomain(a), withDomain(b)
	}
	return strings.EqualFold(a, b)
}

func list(all []Listed) string {
	var s []string
	for i, l := range all {
		s = append(s, fmt.Sprintf("%d: %s at %s", i, l.UUID, l.PCI))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}

// Identity tells a device from all others of a host: its PCI address, but for a MIG instance, of which several are at one address, its UUID.
func (f *Facts) Identity() string {
	if IsMIG(f.UUID) {
		return f.UUID
	}
	return f.PCI
}
