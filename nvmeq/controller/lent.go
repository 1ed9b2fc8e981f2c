package controller

import (
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lent is memory that was mapped for the controller by Borrow. The GPU has no part in what goes to host memory, and the program whose it is
// may be using the GPU meanwhile.
type lent struct {
	host   bool
	device string // gpu.Reach.Device
}

func (c *Controller) lend(d *DMA) {
	reach := d.Mem.Reach()
	c.lent.add(d, lent{reach.Owner != gpu.OwnerDevice, reach.Device})
}

// unlend follows the end of the mapping.
func (c *Controller) unlend(d *DMA) { c.lent.remove(d) }

// Lent says whether the memory at an address of the controller's is host memory of a program's.
func (c *Controller) Lent(at nvme.IOVA) bool {
	x := c.lent.at(at)
	return x != nil && x.host
}

// DeviceAt is the device (gpu.Facts.PCI) whose memory is at an address of the controller's, empty if it is of none, or was not borrowed.
func (c *Controller) DeviceAt(at nvme.IOVA) string {
	if x := c.lent.at(at); x != nil {
		return x.device
	}
	return ""
}
