package controller

import (
	"cmp"
	"slices"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lent is host memory of a program's, mapped for the controller (Borrow). The GPU has no part in what goes there, and the program may
// be using the GPU meanwhile.
type lent struct{ first, end nvme.IOVA }

func (c *Controller) lend(d *DMA) {
	if d.Mem.Reach().Owner == gpu.OwnerDevice {
		return
	}
	c.changeLent(func(all []lent) []lent {
		i, _ := slices.BinarySearchFunc(all, d.IOVA, byFirst)
		return slices.Insert(all, i, lent{d.IOVA, d.IOVA + nvme.IOVA(d.Size)})
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
	p := c.lent.Load()
	if p == nil {
		return false
	}
	i, found := slices.BinarySearchFunc(*p, at, byFirst) // the last that begins at or before the address
	if !found {
		i--
	}
	return i >= 0 && at < (*p)[i].end
}
