package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq"
	"github.com/lanefs/lanefs/nvmeq/vfio"
	"github.com/lanefs/lanefs/nvmeq/vfio/pci"
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

// noGPU is why a GPU does not drive a PCI function.
const noGPU = "PCI functions are driven by the host runtime so far"

// openFunction opens an NVMe function through VFIO, driven by the host runtime. Its device memory may be another
// function's BAR.
func openFunction(cfg *mountConfig, log *slog.Logger) (c controller, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if cfg.GPU != "" && cfg.GPU != "auto" && cfg.GPU != "host" {
		return c, fmt.Errorf("--gpu %s: %s; use --gpu host", cfg.GPU, noGPU)
	}
	if cfg.GPU != "host" {
		onCPU(log, noGPU)
	}
	if c.vram, err = openVRAM(cfg, log); err != nil {
		return c, err
	}
	rt, err := host.Open(host.Options{Bank: c.vram.bank()})
	if err != nil {
		return c, err
	}
	c.rt = rt
	dev, err := vfio.Open(cfg.Device, vfio.Options{Backend: vfio.Backend(cfg.VFIO), Log: log})
	if err != nil {
		return c, err
	}
	c.ctl = dev
	err = c.open(cfg, nvmeq.Config{Log: log})
	return c, err
}
