package controller

import (
	"cmp"
	"slices"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lent is memory that was mapped for the controller by Borrow. The GPU has no part in what goes to host memory, and the program whose it is
// may be using the GPU meanwhile.
type lent struct {
	first, end nvme.IOVA
	host       bool
	device     string // gpu.Reach.Device
}

func (c *Controller) lend(d *DMA) {
	reach := d.Mem.Reach()
	c.changeLent(func(all []lent) []lent {
		i, _ := slices.BinarySearchFunc(all, d.IOVA, byFirst)
		return slices.Insert(all, i, lent{d.IOVA, d.IOVA + nvme.IOVA(d.Size), reach.Owner != gpu.OwnerDevice, reach.Device})
	})
}

// unlend follows the end of the mapping.
func (c *Controller) unlend(d *DMA) {
	c.changeLent(func(all []lent) []lent { return slices.DeleteFunc(all, func(x lent) bool { return x.first == d.IOVA }) })
}

// changeLent puts a changed copy in the list's place: commands read it without a lock.
func (c *Controller) changeLent(change func([]lent) []lent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []lent
	if p := c.lent.Load(); p != nil {
		all = slices.Clone(*p)
	}
	all = change(all)
	c.lent.Store(&all)
}

func byFirst(x lent, at nvme.IOVA) int { return cmp.Compare(x.first, at) }

// Lent says whether the memory at an address of the controller's is host memory of a program's.
func (c *Controller) Lent(at nvme.IOVA) bool {
	x := c.lentAt(at)
	return x != nil && x.host
}

// DeviceAt is the device (gpu.Facts.PCI) whose memory is at an address of the controller's, empty if it is of none, or was not borrowed.
func (c *Controller) DeviceAt(at nvme.IOVA) string {
	if x := c.lentAt(at); x != nil {
		return x.device
	}
	return ""
}

func (c *Controller) lentAt(at nvme.IOVA) *lent {
	p := c.lent.Load()
	if p == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(*p, at, byFirst) // the last that begins at or before the address
	if !found {
		i--
	}
	if i < 0 || at >= (*p)[i].end {
		return nil
	}
	return &(*p)[i]
}
