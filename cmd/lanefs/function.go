package main

import (
	"fmt"
	"strings"

	"github.com/lanefs/lanefs/gpu/vfio/pci"
)

// isFunction says whether a resolved device is a PCI function: a file's path is absolute.
func isFunction(device string) bool {
	return !strings.HasPrefix(device, "/") && pciAddress.MatchString(device)
}

// resolveFunction checks that there is such an NVMe function and that it can be opened, in the foreground.
func resolveFunction(device string) (string, error) {
	f, err := nvmeFunction(device)
	if err != nil {
		return "", err
	}
	if f.Driver != pci.VFIO {
		have := "no driver has it"
		if f.Driver != "" {
			have = fmt.Sprintf("the kernel's driver %q has it", f.Driver)
		}
		return "", fmt.Errorf("device %s is not free for user space: %s; run `lanefs bind %s` first", f.Addr, have, f.Addr)
	}
	return string(f.Addr), nil
}

// explainVirtual says of a virtual function whose controller does not start, or has no queues, who gives it what it needs.
func explainVirtual(device string, err error) error {
	if err == nil || !isFunction(device) {
		return err
	}
	f, why := nvmeFunction(device)
	if why != nil || f.Physical == "" {
		return err
	}
	return fmt.Errorf("%w; %s is a virtual function of %s, whose controller must have given it queues and interrupts and brought it online (nvme virt-mgmt; nvme list-secondary shows its state)",
		err, f.Addr, f.Physical)
}

// nvmeFunction finds an NVMe function by its address.
func nvmeFunction(device string) (*pci.Function, error) {
	a, err := pci.ParseAddress(device)
	if err != nil {
		return nil, err
	}
	f, err := pci.System{}.Function(a)
	if err != nil {
		return nil, err
	}
	if !f.NVMe() {
		return nil, fmt.Errorf("PCI function %s is no NVMe controller: its class is %06x, not %06x", a, f.Class, pci.ClassNVMe)
	}
	return f, nil
}
