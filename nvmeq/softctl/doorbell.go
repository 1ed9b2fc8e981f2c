package softctl

import (
	"sync/atomic"
	"unsafe"
)

// shadow is what Doorbell Buffer Config set up ([BASE] 5.8 and annex B.5): two pages of host memory laid out as the
// doorbells are. The host keeps its doorbells in the first; in the second the controller says at which values it wants
// the real one rung.
type shadow struct{ doorbells, eventIndex uint64 }

// bell is one doorbell: in the BAR or, once configured, in the shadow page. It belongs to its queue.
type bell struct {
	reg      *uint32
	off      uint64 // in the shadow pages
	admin    bool   // the admin queue has no shadow
	shadowed bool
	last     uint32
	page     window
	events   window
}

func (c *Controller) newBell(id uint16, off int64) bell {
	c.bar.store(off, 0)
	b := bell{reg: c.bar.word(off), off: uint64(off - doorbells), admin: id == 0}
	b.move(c)
	return b
}

// move takes the shadow pages into use, if they are configured, with the value that the real doorbell has.
func (b *bell) move(c *Controller) {
	s := c.shadow.Load()
	if s == nil || b.admin || b.off+4 > pageMin {
		return
	}
	b.shadowed = true
	b.page = window{base: s.doorbells, size: pageMin}
	b.events = window{base: s.eventIndex, size: pageMin}
	if p, e := b.shadow(c); p != nil {
		v := atomic.LoadUint32(b.reg)
		atomic.StoreUint32(p, v)
		atomic.StoreUint32(e, v)
	}
}

// shadow gives the bell's places in the shadow pages, nil where there are none.
func (b *bell) shadow(c *Controller) (db, ei *uint32) {
	if !b.shadowed {
		return nil, nil
	}
	p, e := b.page.bytes(c.dma), b.events.bytes(c.dma)
	if p == nil || e == nil {
		return nil, nil
	}
	return (*uint32)(unsafe.Pointer(&p[b.off])), (*uint32)(unsafe.Pointer(&e[b.off]))
}

// read gives the doorbell's value and whether it changed since the last read.
func (b *bell) read(c *Controller) (uint32, bool) {
	p, _ := b.shadow(c)
	if p == nil {
		p = b.reg
	}
	v := atomic.LoadUint32(p)
	changed := v != b.last
	b.last = v
	return v, changed
}

// announce asks to be rung when the doorbell moves on from v. It reports whether it already has: the store of the index
// is ordered before the second look at the doorbell, as the host orders the other two the other way round, so that at
// least one side notices.
func (b *bell) announce(c *Controller, v uint32) bool {
	p, e := b.shadow(c)
	if p == nil {
		return false
	}
	atomic.SwapUint32(e, v) // see kernels.WorkSlot.Put
	return atomic.LoadUint32(p) != b.last
}

// refuse reports an invalid value, which is ignored.
func (b *bell) refuse(c *Controller, v uint32, queue uint16, kind string) {
	c.log.Warn("invalid doorbell value", "queue", queue, "kind", kind, "value", v)
	c.events.add(eventInvalidValue)
}
