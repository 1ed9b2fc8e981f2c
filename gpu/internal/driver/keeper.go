package driver

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu"
)

// DeviceReach is the reach of the device's own memory.
func (d *Device) DeviceReach() gpu.Reach {
	r := gpu.Reach{Owner: gpu.OwnerDevice, Device: d.cfg.Facts.PCI}
	if d.cfg.Arrived != nil {
		r.Keeper = keeper{d}
		if d.cfg.Direct {
			r.Keeper = direct{keeper{d}}
		}
	}
	return r
}

// keeper is the gpu.Keeper of all memory of a device.
type keeper struct{ d *Device }

// direct is a keeper that is gpu.Direct.
type direct struct{ keeper }

func (direct) Direct() {}

// Revoked implements gpu.Keeper. The driver tells importers of its DMA-BUFs: the kernel ends their mappings.
func (keeper) Revoked() error { return nil }

// Arrived implements gpu.Keeper.
func (k keeper) Arrived() error {
	if err := k.d.cfg.Arrived(k.d); err != nil {
		return fmt.Errorf("%s: flushing what was written into device memory: %w", k.d.prefix, err)
	}
	return nil
}
