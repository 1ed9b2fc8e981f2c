package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// iommu looks for the IOMMU and for the ways that VFIO offers.
func (x *examiner) iommu() {
	units, groups := x.names("sys/class/iommu"), x.names("sys/kernel/iommu_groups")
	f := Finding{Area: IOMMU, What: "IOMMU", OK: len(groups) > 0}
	switch {
	case f.OK:
		f.Found = fmt.Sprintf("on: %s; %d groups, %s", strings.Join(units, ", "), len(groups), x.domains(groups))
	case len(units) > 0:
		f.Found, f.Remedy = strings.Join(units, ", ")+" and no groups: it translates nothing", "boot with intel_iommu=on or amd_iommu=on, without iommu=off"
	default:
		f.Found, f.Remedy = "off or absent", "switch VT-d or AMD-Vi (IOMMU) on in the firmware, and boot with intel_iommu=on; a virtual machine needs a virtual one"
	}
	x.add(f)

	f = Finding{Area: IOMMU, What: "vfio-pci", OK: x.exists("sys/bus/pci/drivers/vfio-pci"), Found: "loaded"}
	if !f.OK {
		f.Found, f.Remedy = "not loaded", "modprobe vfio-pci (and write vfio-pci into /etc/modules-load.d/lanefs.conf)"
	}
	x.add(f)
	x.add(x.node("IOMMUFD", "dev/iommu", "modprobe iommufd, on a kernel with CONFIG_IOMMUFD; type1 serves until then"))
	x.add(x.node("type1", "dev/vfio/vfio", "modprobe vfio_iommu_type1; not needed where there is IOMMUFD"))
	if x.text("sys/module/vfio/parameters/enable_unsafe_noiommu_mode") == "Y" {
		x.add(Finding{Area: IOMMU, What: "no-IOMMU mode", Found: "VFIO's unsafe no-IOMMU mode is on; LaneFS does not use it",
			Remedy: "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode"})
	}
}

// node looks for a device node that a mount opens.
func (x *examiner) node(what, path, remedy string) Finding {
	f := Finding{Area: IOMMU, What: what}
	switch err := x.usable(path); {
	case !x.exists(path):
		f.Found, f.Remedy = "there is no /"+path, remedy
	case err != nil:
		f.Found, f.Remedy = fmt.Sprintf("/%s: %v", path, err), "be root, or let a group in: 70-lanefs.rules, docs/HARDWARE.md"
	default:
		f.OK, f.Found = true, "/"+path+" can be opened"
	}
	return f
}

// domains counts the kinds of the groups' default domains.
func (x *examiner) domains(groups []string) string {
	count := map[string]int{}
	var kinds []string
	for _, g := range groups {
		kind := x.text("sys/kernel/iommu_groups/" + g + "/type")
		if kind == "" {
			kind = "of unknown type"
		}
		if count[kind]++; count[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	slices.Sort(kinds)
	for i, k := range kinds {
		kinds[i] = fmt.Sprintf("%d %s", count[k], k)
	}
	return strings.Join(kinds, ", ")
}

// iommufd and type1 say whether a drive can be opened that way now.
func (x *examiner) iommufd() bool {
	return x.usable("dev/iommu") == nil && x.Kernel.Options["VFIO_DEVICE_CDEV"] != "n"
}
func (x *examiner) type1() bool { return x.usable("dev/vfio/vfio") == nil }
