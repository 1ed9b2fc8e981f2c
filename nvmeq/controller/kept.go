package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// kept is memory under DMA of which something is to be done when the controller has written there: its keeper is asked, or it is not where completions
// may be (gpu.Reach).
type kept struct {
	reach gpu.Reach
	host  bool // the CPU has a view of it
}

// keep notes the reach of memory that is mapped for the controller. Where the software controller has the memory's own copy engine move the
// bytes, no other device writes there; nor does it complete a command before the bytes are there, wherever they are.
func (c *Controller) keep(d *DMA) {
	r := d.Mem.Reach()
	asked := r.Keeper != nil && (c.stepper == nil || d.Host != nil)
	apart := c.stepper == nil && (c.Placement().CQ.Device() || r.Apart(gpu.Reach{Owner: gpu.OwnerPages}))
	if !asked && !apart {
		return
	}
	c.kept.add(d, kept{r, d.Host != nil})
}

// forget follows the end of the mapping.
func (c *Controller) forget(d *DMA) {
	if c.Kept() {
		c.kept.remove(d)
	}
}

// Kept says that there is memory under DMA of which something is to be done when it was written to.
func (c *Controller) Kept() bool { return len(c.kept.ranges()) > 0 }

// KeptAt is the reach of such memory at an address of the controller's; false if nothing is to be done there.
func (c *Controller) KeptAt(at nvme.IOVA) (gpu.Reach, bool) {
	if x := c.kept.at(at); x != nil {
		return x.reach, true
	}
	return gpu.Reach{}, false
}

// StoredBy is who is to be told, before the controller reads the memory at an address of its own, that the CPU may have stored there: nil for nobody. Such stores go to a function's BAR, and a
// command's doorbell to another's, so nothing orders them.
func (c *Controller) StoredBy(at nvme.IOVA) gpu.Keeper {
	if x := c.kept.at(at); c.stepper == nil && x != nil && x.host {
		return x.reach.Keeper
	}
	return nil
}

// Land follows a completion that may have been seen before its command's data has arrived, since they went apart (gpu.Reach.Apart). It reads a register: what a function
// answers does not pass what it wrote before (PCI Express Base 6.0 §2.4.1, entry D2a), so all that is past the place where the ways part. It costs a round trip
// to the device, about a microsecond. The error says that the device did not answer. A controller in software needs nothing.
func (c *Controller) Land() error {
	if c.stepper == nil && c.CSTS().Gone() {
		return fmt.Errorf("the device is gone (CSTS reads all ones), perhaps before its data arrived")
	}
	return nil
}
