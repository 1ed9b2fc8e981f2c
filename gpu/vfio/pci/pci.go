// Package pci is PCI functions as Linux shows them in sysfs: what they are, which driver has them, which IOMMU group they
// are in, which processes have them open through VFIO; how to move one from a driver to another; and what uses a device node.
//
// A System is a root directory with sys, proc and dev below it, so that tests can build one. A Function is what was read
// of one function at one moment; Rebind reads it again.
package pci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Address of a function: domain:bus:device.function, lower-case hexadecimal, as sysfs spells it.
type Address string

var addressForm = regexp.MustCompile(`^(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[01][0-9a-fA-F]\.[0-7])$`)

// ParseAddress reads an address with or without its domain, which is 0000 then.
func ParseAddress(s string) (Address, error) {
	m := addressForm.FindStringSubmatch(s)
	if m == nil {
		return "", fmt.Errorf("%q is not a PCI address: want domain:bus:device.function, such as 0000:01:00.0", s)
	}
	if m[1] == "" {
		m[1] = "0000"
	}
	return Address(strings.ToLower(m[1] + ":" + m[2])), nil
}

// System is where the machine's directories are; the zero value is this machine.
type System struct{ Root string }

// Path is a path of the machine: Path("dev", "sda").
func (s System) Path(parts ...string) string {
	return filepath.Join(append([]string{"/", s.Root}, parts...)...)
}

// System is the machine that f is of.
func (f *Function) System() System { return f.sys }

// SysPath is the path of a file in the function's directory in sysfs.
func (f *Function) SysPath(parts ...string) string { return f.sys.device(f.Addr, parts...) }

func (s System) device(a Address, parts ...string) string {
	return s.Path(append([]string{"sys/bus/pci/devices", string(a)}, parts...)...)
}

// Function is one PCI function.
type Function struct {
	Addr   Address
	Class  uint32 // base class, subclass, programming interface
	Vendor uint16
	Device uint16
	Driver string // empty: none
	Group  string // IOMMU group; empty: no IOMMU
	// Physical is the function that this one is a virtual function of (SR-IOV); empty: it is none.
	Physical Address
	sys      System
}

// Classes (PCI Code and ID Assignment 1.11, §1.2, §1.4, §1.6, §1.7).
const (
	ClassNVMe    = 0x010802
	classDisplay = 0x03
	classRAM     = 0x0500
	classBridge  = 0x06
	classAccel   = 0x12
)

// Function reads what sysfs says of a.
func (s System) Function(a Address) (*Function, error) {
	f := &Function{Addr: a, sys: s}
	return f, f.refresh()
}

// refresh reads everything again.
func (f *Function) refresh() error {
	if _, err := os.Stat(f.SysPath()); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("there is no PCI function %s on this machine; lspci -D lists those there are: %w", f.Addr, os.ErrNotExist)
		}
		return err
	}
	class, err := f.hex("class")
	if err != nil {
		return err
	}
	vendor, err := f.hex("vendor")
	if err != nil {
		return err
	}
	device, err := f.hex("device")
	if err != nil {
		return err
	}
	f.Class, f.Vendor, f.Device = uint32(class), uint16(vendor), uint16(device)
	f.Driver, f.Group, f.Physical = f.link("driver"), f.link("iommu_group"), Address(f.link("physfn"))
	return nil
}

func (f *Function) text(name string) string {
	b, _ := os.ReadFile(f.SysPath(name))
	return strings.TrimSpace(string(b))
}

func (f *Function) hex(name string) (uint64, error) {
	v, err := strconv.ParseUint(strings.TrimPrefix(f.text(name), "0x"), 16, 32)
	if err != nil {
		return 0, fmt.Errorf("PCI function %s: reading %s: %w", f.Addr, name, err)
	}
	return v, nil
}

// link is the last element of where a symbolic link points, empty if there is none.
func (f *Function) link(name string) string {
	to, err := os.Readlink(f.SysPath(name))
	if err != nil {
		return ""
	}
	return filepath.Base(to)
}

// NVMe, Memory, GPU and Bridge say what the function is by its class.
func (f *Function) NVMe() bool   { return f.Class == ClassNVMe }
func (f *Function) Bridge() bool { return f.Class>>16 == classBridge }
func (f *Function) Memory() bool { return f.Class>>8 == classRAM }
func (f *Function) GPU() bool    { return f.Class>>16 == classDisplay || f.Class>>16 == classAccel }

// VFIODevice is the name of the function's own node in /dev/vfio/devices, empty where the kernel gives none.
func (f *Function) VFIODevice() string {
	list, _ := os.ReadDir(f.SysPath("vfio-dev"))
	for _, e := range list {
		if _, err := os.Stat(f.sys.Path("dev/vfio/devices", e.Name())); err == nil {
			return e.Name()
		}
	}
	return ""
}

// bridges is the chain of bridges above the function, from the root complex ("pci0000:00") down.
func (f *Function) bridges() []string {
	to, err := filepath.EvalSymlinks(f.SysPath())
	if err != nil {
		return nil
	}
	var path []string
	for _, part := range strings.Split(filepath.Dir(to), "/") {
		if strings.HasPrefix(part, "pci") || addressForm.MatchString(part) {
			path = append(path, part)
		}
	}
	return path
}

// Virtual are the function's virtual functions that are switched on, by their numbers.
func (f *Function) Virtual() (all []Address) {
	for n := 0; ; n++ {
		a := f.link(fmt.Sprintf("virtfn%d", n))
		if a == "" {
			return all
		}
		all = append(all, Address(a))
	}
}

// BAR is one memory resource, in physical addresses.
type BAR struct {
	Index int
	First uint64
	Last  uint64
}

// Size in bytes.
func (b BAR) Size() uint64 { return b.Last - b.First + 1 }

const resourceMemory = 0x200 // IORESOURCE_MEM

// BARs are the function's memory BARs that have an address, none where that cannot be read.
func (f *Function) BARs() []BAR {
	bars, _ := f.ReadBARs()
	return bars
}

// ReadBARs is BARs, or why they are not known. A function that was taken out meanwhile has none.
func (f *Function) ReadBARs() (bars []BAR, err error) {
	b, err := os.ReadFile(f.SysPath("resource"))
	if err != nil {
		if _, gone := os.Stat(f.SysPath()); errors.Is(gone, os.ErrNotExist) {
			return nil, nil
		}
		return nil, fmt.Errorf("PCI function %s: its BARs: %w", f.Addr, err)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		var first, last, flags uint64
		if n, _ := fmt.Sscanf(line, "0x%x 0x%x 0x%x", &first, &last, &flags); n == 3 && i < 6 && flags&resourceMemory != 0 && last > first {
			bars = append(bars, BAR{i, first, last})
		}
	}
	return bars, nil
}

// Functions lists all functions, by address.
func (s System) Functions() ([]*Function, error) {
	list, err := os.ReadDir(s.Path("sys/bus/pci/devices"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var all []*Function
	for _, e := range list {
		f, err := s.Function(Address(e.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue // taken out meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b *Function) int { return strings.Compare(string(a.Addr), string(b.Addr)) })
	return all, nil
}

// Companions are the other functions of the same IOMMU group that have a driver which keeps the group from VFIO. A bridge's driver moves
// no data, and does not count.
func (f *Function) Companions() ([]*Function, error) {
	if f.Group == "" {
		return nil, nil
	}
	list, err := os.ReadDir(f.sys.Path("sys/kernel/iommu_groups", f.Group, "devices"))
	if err != nil {
		return nil, err
	}
	var others []*Function
	for _, e := range list {
		if e.Name() == string(f.Addr) {
			continue
		}
		o, err := f.sys.Function(Address(e.Name()))
		if err != nil {
			return nil, err
		}
		if o.Driver != "" && !harmless[o.Driver] {
			others = append(others, o)
		}
	}
	return others, nil
}

// harmless are drivers that leave a group usable by VFIO.
var harmless = map[string]bool{"vfio-pci": true, "pci-stub": true, "pcieport": true}
