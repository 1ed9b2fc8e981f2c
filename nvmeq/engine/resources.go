package engine

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/kernels/traced"
	"github.com/lanefs/lanefs/nvmeq/controller"
)

// resources is what the lanes of an engine run on: the kernels, their driver, and the memory.
type resources struct {
	drv     driver
	calls   *driverCalls // of the driver of a GPU; nil on a CPU
	clock   traceClock   // by which lanes trace
	clockHz uint64       // of the device's clock, for kernels that run on their own; 0 is nanoseconds
	module  gpu.Module
	route   DoorbellRoute
	bar     *controller.BAR // BAR 0 for kernels: the controller's registration, or one of our own. nil with a bridge
	ownBAR  bool            // bar is closed with the lanes
	bridge  gpu.Memory      // the bridge's words; nil without
	shared  gpu.Memory      // rings, control words, counters: CPU and lanes
	own     gpu.Memory      // the word of the launches, lane structs and CIDs: lanes only
	lanes   []kernels.Lane  // the lane structs as they are at first
	stream  gpu.Stream      // for setting up
	sq      *controller.DMA // all submission queues
	cq      *controller.DMA // all completion queues
	prp     *controller.DMA // all PRP lists
	ranges  *controller.DMA // Dataset Management range lists
}

// load loads the kernels.
func (w *resources) load(e *Engine) (err error) {
	rt := e.runtime()
	image := e.cfg.Image
	if e.cfg.Trace {
		if image, err = traced.Image(rt.Facts().Arch); err != nil {
			return err
		}
	}
	if image == nil {
		if image, err = kernels.Image(rt.Facts().Arch); err != nil {
			return err
		}
	}
	w.clockHz = uint64(rt.Facts().ClockHz)
	if w.module, err = rt.Load(image); err != nil {
		return fmt.Errorf("loading the kernels: %w", err)
	}
	if !rt.Facts().CallerDriven {
		w.calls = &driverCalls{c: e.c, limit: e.cfg.HangTimeout}
	}
	s, err := rt.NewStream()
	if err != nil {
		return err
	}
	w.stream = w.calls.stream(s)
	if e.cfg.Trace {
		if err := w.clock.calibrate(rt, w.module, w.stream); err != nil {
			return fmt.Errorf("the clock of the lanes: %w", err)
		}
	}
	w.drv, err = newDriver(e, w)
	return err
}

// build allocates the memory of n lanes.
func (w *resources) build(e *Engine, n int) (g geometry, err error) {
	c := e.c
	rt := e.runtime()
	if err = w.openDoorbells(e, n); err != nil {
		return g, err
	}
	g = newGeometry(e.cfg, c.PageSize(), n)
	w.lanes = make([]kernels.Lane, n)
	p := c.Placement()
	for _, a := range []struct {
		d    **controller.DMA
		kind gpu.MemKind
		size int64
	}{{&w.sq, p.SQ, g.sq}, {&w.cq, p.CQ, g.cq}, {&w.prp, p.List, g.prp}, {&w.ranges, p.Host, g.ranges}} {
		if *a.d, err = c.AllocDMAOn(rt, a.kind, int64(n)*a.size, g.page); err != nil {
			return g, err
		}
	}
	reach := w.cq.Mem.Reach()
	e.completions.Store(&reach)
	if w.shared, err = rt.Alloc(p.Ring, int64(n)*g.shared); err != nil {
		return g, err
	}
	if w.own, err = rt.Alloc(p.Lane, g.own); err != nil {
		return g, err
	}
	if w.shared.Host() == nil || w.ranges.Host == nil {
		return g, fmt.Errorf("%s gives no CPU view of %v memory, which the rings need", rt.Name(), p.Ring)
	}
	clear(w.shared.Host())
	return g, w.drv.prepare(w, n)
}

// close frees everything. No kernel runs on it, and the controller has no queue in it.
func (w *resources) close(c *controller.Controller) error {
	errs := []error{w.closeQueues()}
	for _, m := range []gpu.Memory{w.shared, w.own, w.bridge} {
		if m != nil {
			errs = append(errs, c.Quiesced(m.Close))
		}
	}
	switch {
	case w.bar == nil:
	case w.ownBAR:
		errs = append(errs, c.Quiesced(w.bar.Close))
	default:
		errs = append(errs, c.Quiesced(c.ReleaseBAR))
	}
	if w.drv != nil {
		errs = append(errs, w.drv.close())
	}
	if w.stream != nil {
		errs = append(errs, w.stream.Close())
	}
	if w.module != nil {
		errs = append(errs, c.Quiesced(w.module.Close))
	}
	return errors.Join(errs...)
}

// leave follows the failure of the runtime, one of whose kernels may run yet: what only lanes use is left as it is.
func (w *resources) leave(c *controller.Controller) error {
	for _, m := range []gpu.Memory{w.shared, w.own, w.bridge} {
		if m != nil {
			c.LeaveMemory(m.Size())
		}
	}
	return w.closeQueues()
}

// closeQueues unmaps what the controller can access, and frees it unless the runtime has failed.
func (w *resources) closeQueues() error {
	return errors.Join(w.sq.Close(), w.cq.Close(), w.prp.Close(), w.ranges.Close())
}
