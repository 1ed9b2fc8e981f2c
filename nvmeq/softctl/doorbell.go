package softctl

import "sync/atomic"

// bell is one doorbell register in the BAR. It belongs to its queue.
type bell struct {
	reg  *uint32
	last uint32
}

func (c *Controller) newBell(off int64) bell {
	c.bar.store(off, 0)
	return bell{reg: c.bar.word(off)}
}

// read gives the doorbell's value and whether it changed since the last read.
func (b *bell) read() (uint32, bool) {
	v := atomic.LoadUint32(b.reg)
	changed := v != b.last
	b.last = v
	return v, changed
}

// refuse reports an invalid value, which is ignored.
func (b *bell) refuse(c *Controller, v uint32, queue uint16, kind string) {
	c.log.Warn("invalid doorbell value", "queue", queue, "kind", kind, "value", v)
	c.events.add(eventInvalidValue)
}
