package doctor

import (
	"fmt"
	"strings"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
	"github.com/lanefs/lanefs/nvmeq/pcie"
)

// Drive is an NVMe function.
type Drive struct {
	Addr       pci.Address `json:"address"`
	Driver     string      `json:"driver,omitempty"`
	Group      string      `json:"iommu_group,omitempty"`
	Model      string      `json:"model,omitempty"` // where the kernel's driver has it
	Disks      []string    `json:"disks,omitempty"`
	Users      []string    `json:"users,omitempty"`
	Physical   pci.Address `json:"physical_function,omitempty"` // that this is a virtual function of (SR-IOV)
	Virtual    []string    `json:"virtual_functions,omitempty"`
	Companions []string    `json:"companions,omitempty"` // of its group, in other drivers' hands
	Ready      bool        `json:"ready"`                // lanefs mount can open it
	Bindable   bool        `json:"bindable"`             // lanefs bind would make it ready
	f          *pci.Function
}

func (x *examiner) drives(all []*pci.Function) {
	for _, f := range all {
		if f.NVMe() {
			x.drive(f)
		}
	}
	if len(x.Drives) == 0 {
		x.add(Finding{Area: Drives, What: "NVMe functions", Found: "none on the PCI bus", Remedy: "image files need none"})
	}
}

func (x *examiner) drive(f *pci.Function) {
	d := Drive{Addr: f.Addr, Driver: f.Driver, Group: f.Group, Disks: pcie.Disks(f), Physical: f.Physical, f: f}
	for _, v := range f.Virtual() {
		d.Virtual = append(d.Virtual, string(v))
	}
	for _, c := range x.names("sys/bus/pci/devices/" + string(f.Addr) + "/nvme") {
		d.Model = x.text("sys/bus/pci/devices/" + string(f.Addr) + "/nvme/" + c + "/model")
	}
	users, err := pcie.Users(f)
	for _, u := range users {
		d.Users = append(d.Users, u.String())
	}
	others, err2 := f.Companions()
	for _, o := range others {
		d.Companions = append(d.Companions, fmt.Sprintf("%s (%s)", o.Addr, o.Driver))
	}
	line := Finding{Area: Drives, What: string(d.Addr), Found: strings.TrimSpace(d.Model + driverWords(f.Driver))}
	if d.Physical != "" {
		line.Found += ", a virtual function of " + string(d.Physical)
	}
	if d.Group != "" {
		line.Found += ", IOMMU group " + d.Group
	}
	node, nodeErr := x.vfioNode(f)
	switch {
	case err != nil || err2 != nil:
		line.Found = fmt.Sprint(err, err2)
	case d.Group == "":
		line.Found += ", in no IOMMU group"
		line.Remedy = "switch the IOMMU on"
	case f.Driver == pci.VFIO && len(d.Users) > 0:
		line.OK = true
		line.Found += "; " + strings.Join(d.Users, "; ")
		d.Ready = true
	case f.Driver == pci.VFIO && nodeErr != nil:
		line.Found += "; " + nodeErr.Error()
		line.Remedy = "be root, or let a group in: 70-lanefs.rules, docs/HARDWARE.md"
	case f.Driver == pci.VFIO:
		line.OK, d.Ready = true, true
		line.Found += "; ready: " + node
	case len(d.Users) > 0:
		line.Found += "; in use: " + strings.Join(d.Users, "; ")
		line.Remedy = "free it first (umount, swapoff, …), then lanefs bind " + string(d.Addr)
	case len(d.Companions) > 0:
		line.Found += "; others of its group are in use: " + strings.Join(d.Companions, ", ")
		line.Remedy = "free them too, or use a slot with a group of its own (ACS)"
	case len(d.Virtual) > 0:
		line.Found += "; has virtual functions: " + strings.Join(d.Virtual, ", ")
		line.Remedy = "use those, or switch them off first: echo 0 > " + f.SysPath("sriov_numvfs")
	default:
		d.Bindable = true
		line.Found += "; not in use"
		line.Remedy = "lanefs bind " + string(d.Addr)
	}
	x.Drives = append(x.Drives, d)
	x.add(line)
}

func driverWords(driver string) string {
	if driver == "" {
		return " without a driver"
	}
	return " with driver " + driver
}

// vfioNode is the node by which a bound function is opened, and why it cannot be.
func (x *examiner) vfioNode(f *pci.Function) (string, error) {
	node := "dev/vfio/" + f.Group
	if name := f.VFIODevice(); name != "" && x.iommufd() {
		node = "dev/vfio/devices/" + name
	}
	if err := x.usable(node); err != nil {
		return "", fmt.Errorf("/%s: %w", node, err)
	}
	return "/" + node, nil
}
