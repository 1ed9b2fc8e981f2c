package controller

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/nvmeq/internal/align"
)

// BARExporter is a Transport that exports BAR 0 as a descriptor, which a GPU's driver can import.
type BARExporter interface {
	ExportBAR() (gpu.Export, error)
}

// BAR is what kernels have of BAR 0.
type BAR struct {
	gpu.Memory
	first int64       // where in BAR 0 the memory begins, in bytes
	of    gpu.Runtime // that has it
	own   *Controller // in whose list ownBARs it is; nil for the one that engines share
}

// At is the address of the register at an offset of BAR 0 for kernels. Doorbells are in their reach, other registers may not be.
func (b *BAR) At(off int64) gpu.Addr { return b.Addr() + gpu.Addr(off-b.first) }

// ImportBAR maps BAR 0 for kernels by its descriptor. VFIO revokes the DMA-BUF while the function is reset; no lane rings then. The caller closes it.
func (c *Controller) ImportBAR() (*BAR, error) {
	x, ok := c.t.(BARExporter)
	if !ok {
		return nil, errors.New("BAR 0 cannot be had as a descriptor")
	}
	e, err := x.ExportBAR()
	if err != nil {
		return nil, err
	}
	fd := os.NewFile(uintptr(e.FD), "BAR 0")
	defer fd.Close()
	m, err := bounded.Import(c.Runtime(), e)
	if err != nil {
		return nil, fmt.Errorf("importing BAR 0: %w", err)
	}
	b := &BAR{Memory: m, of: c.Runtime(), own: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left { // meanwhile
		return nil, errors.Join(c.wasTaken(), m.Close())
	}
	c.ownBARs = append(c.ownBARs, b)
	return b, nil
}

func (c *Controller) wasTaken() error { return fmt.Errorf("%s was taken away", c.t.Name()) }

// doorbellPages is where in BAR 0 the doorbells of all queues are, in whole pages. Each page has been accessed: VFIO maps a BAR page by page
// at the first access (since Linux 6.12), and a GPU's driver that registers the mapping goes by what is mapped then. A doorbell's
// value is the vendor's choice when it is read (PCIe transport §3.1.2), and nothing happens.
func (c *Controller) doorbellPages() (first, end int64) {
	page := int64(os.Getpagesize())
	first, end = c.stride.SQ(0)/page*page, align.Up(c.stride.End(uint16(c.queues)), page)
	size := int64(len(c.t.BAR()))
	end = min(end, align.Up(size, page), int64(cap(c.t.BAR())))
	for at := first; at < end; at += page {
		c.t.Read32(min(at+page, end, size) - 4)
	}
	return first, end
}

// AcquireBAR registers the doorbells' pages of BAR 0 for kernels. A GPU's driver registers memory once only, so all engines of a controller share the
// registration; each calls ReleaseBAR when it is done.
func (c *Controller) AcquireBAR() (*BAR, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bar == nil {
		b, err := c.registerBAR(c.Runtime())
		if err != nil {
			return nil, err
		}
		c.bar = b
	}
	c.barUsers++
	return c.bar, nil
}

// RegisterBAR is AcquireBAR for kernels of another runtime than the controller's: on the CPU, or a further GPU. The caller closes it.
func (c *Controller) RegisterBAR(rt gpu.Runtime) (*BAR, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, err := c.registerBAR(rt)
	if err != nil {
		return nil, err
	}
	b.own = c
	c.ownBARs = append(c.ownBARs, b)
	return b, nil
}

// Close ends what RegisterBAR or ImportBAR began, unless that has ended with the device or its runtime.
func (b *BAR) Close() error {
	if b.own == nil {
		return b.Memory.Close()
	}
	b.own.mu.Lock()
	defer b.own.mu.Unlock()
	i := slices.Index(b.own.ownBARs, b)
	if i < 0 {
		return nil
	}
	b.own.ownBARs = slices.Delete(b.own.ownBARs, i, i+1)
	return b.Memory.Close()
}

// registerBAR registers the doorbells' pages with rt. The caller holds mu.
func (c *Controller) registerBAR(rt gpu.Runtime) (*BAR, error) {
	if c.left {
		return nil, c.wasTaken()
	}
	first, end := c.doorbellPages()
	m, err := rt.Register(c.t.BAR()[first:end:end], gpu.RegisteredMMIO)
	if err != nil {
		return nil, err
	}
	return &BAR{Memory: m, first: first, of: rt}, nil
}

// OpenBAR maps BAR 0 for kernels, by registration or else by import. The function ends that.
func (c *Controller) OpenBAR() (*BAR, func() error, error) {
	m, err := c.AcquireBAR()
	if err == nil {
		return m, c.ReleaseBAR, nil
	}
	m, err2 := c.ImportBAR()
	if err2 != nil {
		return nil, nil, fmt.Errorf("%w; %w", err, err2)
	}
	return m, m.Close, nil
}

// dropBAR forgets the registrations with runtimes that have failed. ended says that none of their kernels can store to it any more.
func (c *Controller) dropBAR(ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := len(c.ownBARs)
	c.ownBARs = slices.DeleteFunc(c.ownBARs, func(b *BAR) bool { return c.hasFailed(b.of) })
	c.barLost = c.barLost || (c.bar != nil || len(c.ownBARs) < had) && !ended
	c.bar, c.barUsers = nil, 0
}

// leave follows the loss of the device, before another driver gets it: no kernel rings its doorbells any more, and every registration of
// its BAR ends. A lane that does not answer may ring later, so the device is kept from others then.
func (c *Controller) leave() error {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	for _, q := range c.queuePairs() {
		if err := q.Silence(); err != nil {
			return err
		}
	}
	return c.Quiesced(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.barLost {
			return errors.New("a kernel that hangs on the runtime that failed has the doorbells")
		}
		var errs []error
		for _, b := range c.ownBARs {
			errs = append(errs, b.Memory.Close())
		}
		c.ownBARs = nil
		if c.bar != nil {
			errs = append(errs, c.bar.Close())
		}
		c.bar = nil
		return errors.Join(errs...)
	})
}

// ReleaseBAR ends one AcquireBAR.
func (c *Controller) ReleaseBAR() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.barUsers--; c.barUsers > 0 {
		return nil
	}
	m := c.bar
	c.bar = nil
	if m == nil {
		return nil // leave has ended it
	}
	return m.Close()
}
