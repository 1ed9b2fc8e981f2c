package controller

import (
	"cmp"
	"slices"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// kept is memory under DMA that has a keeper: gpu.Reach says why it is asked.
type kept struct {
	first, end nvme.IOVA
	keeper     gpu.Keeper
}

// keep notes the keeper of memory that is mapped for the controller. Where the software controller has the memory's own copy engine move the
// bytes, no other device writes there.
func (c *Controller) keep(d *DMA) {
	k := d.Mem.Reach().Keeper
	if k == nil || c.stepper != nil && d.Host == nil {
		return
	}
	c.changeKept(func(all []kept) []kept {
		i, _ := slices.BinarySearchFunc(all, d.IOVA, func(x kept, at nvme.IOVA) int { return cmp.Compare(x.first, at) })
		return slices.Insert(all, i, kept{d.IOVA, d.IOVA + nvme.IOVA(d.Size), k})
	})
}

// forget follows the end of the mapping.
func (c *Controller) forget(d *DMA) {
	if c.Kept() {
		c.changeKept(func(all []kept) []kept { return slices.DeleteFunc(all, func(x kept) bool { return x.first == d.IOVA }) })
	}
}

// changeKept puts a changed copy in the list's place: commands read it without a lock.
func (c *Controller) changeKept(change func([]kept) []kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []kept
	if p := c.kept.Load(); p != nil {
		all = slices.Clone(*p)
	}
	all = change(all)
	c.kept.Store(&all)
}

// Kept says that memory under DMA has keepers.
func (c *Controller) Kept() bool {
	p := c.kept.Load()
	return p != nil && len(*p) > 0
}

// Keeper is whom to ask about the memory at an address of the controller's, nil for nobody.
func (c *Controller) Keeper(at nvme.IOVA) gpu.Keeper {
	p := c.kept.Load()
	if p == nil {
		return nil
	}
	// The last that begins at or before the address.
	i, found := slices.BinarySearchFunc(*p, at, func(x kept, at nvme.IOVA) int { return cmp.Compare(x.first, at) })
	if !found {
		i--
	}
	if i < 0 || at >= (*p)[i].end {
		return nil
	}
	return (*p)[i].keeper
}
