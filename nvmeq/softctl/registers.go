package softctl

import (
	"time"
)

// Read32 reads a register. What is not there reads as all ones, as it would on PCI.
func (c *Controller) Read32(off int64) uint32 {
	if off == regCSTS {
		c.mu.Lock()
		c.settle()
		c.mu.Unlock()
	}
	c.bar.mu.RLock()
	defer c.bar.mu.RUnlock()
	if c.bar.mem == nil || off < 0 || off&3 != 0 || off > c.bar.size-4 {
		return ^uint32(0)
	}
	return c.bar.load(off)
}

func (c *Controller) Read64(off int64) uint64 {
	lo := c.Read32(off)
	return uint64(c.Read32(off+4))<<32 | uint64(lo)
}

func (c *Controller) Write64(off int64, v uint64) {
	c.Write32(off, uint32(v))
	c.Write32(off+4, uint32(v>>32))
}

// Write32 writes a register and does what follows from it before it returns. Reserved and read-only ones stay as they
// are.
func (c *Controller) Write32(off int64, v uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || off < 0 || off&3 != 0 || off > c.bar.size-4 {
		return
	}
	c.settle()
	if off >= doorbells {
		c.writeDoorbell(off, v)
		return
	}
	switch off {
	case regINTMS: // write 1 to set; both read as the mask
		m := c.bar.load(regINTMS) | v
		c.bar.store(regINTMS, m)
		c.bar.store(regINTMC, m)
	case regINTMC:
		m := c.bar.load(regINTMS) &^ v
		c.bar.store(regINTMS, m)
		c.bar.store(regINTMC, m)
	case regCC:
		c.writeCC(configuration(v))
	case regCSTS:
		if v&cstsNSSRO != 0 { // the only bit that can be written: 1 clears it
			c.setCSTS(0, cstsNSSRO)
		}
	case regNSSR:
		if v == nssrMagic {
			c.resetLocked(true)
			c.setCSTS(cstsNSSRO, 0)
		}
	case regAQA:
		if !c.cc.enabled() {
			c.bar.store(regAQA, v&0x0fff0fff)
		}
	case regASQ, regASQ + 4, regACQ, regACQ + 4:
		if !c.cc.enabled() {
			c.bar.store(off, v)
		}
	}
}

// writeDoorbell is for doorbells that are rung by register write rather than by a store to the BAR: one of a queue that
// does not exist is noticed at once.
func (c *Controller) writeDoorbell(off int64, v uint32) {
	id, cq, ok := c.bar.doorbellAt(off)
	if !ok || c.now() != stateReady {
		return
	}
	exists := id < int64(len(c.sq)) && (cq && c.cq[id] != nil || !cq && c.sq[id].Load() != nil)
	if !exists {
		c.log.Warn("doorbell of a queue that does not exist", "queue", id, "completion", cq, "value", v)
		c.events.add(eventInvalidDoorbell)
		return
	}
	c.bar.store(off, v)
}

// capabilities is CAP ([BASE] 3.1.3.1).
func (c *Controller) capabilities() uint64 {
	v := uint64(c.opt.Depth-1) | // MQES
		1<<16 | // CQR: queues are contiguous
		uint64(capTimeout/(500*time.Millisecond))<<24 | // TO
		uint64(c.opt.Stride)<<32 | // DSTRD
		1<<36 | // NSSRS
		1<<37 | // CSS: NVM command set
		0<<48 | // MPSMIN: 4 KiB
		mpsMax<<52
	if c.opt.Version >= Version20 {
		v |= 1<<43 | 1<<59 // CSS: I/O command sets; CRMS: ready with media
	}
	return v
}

// setCSTS changes bits of CSTS. The data path may set CFS at the same time.
func (c *Controller) setCSTS(set, clear uint32) {
	for {
		old := c.bar.load(regCSTS)
		if compareAndSwap(c.bar.word(regCSTS), old, old&^clear|set) {
			return
		}
	}
}

// resetLocked is a controller-level reset ([BASE] 3.7.2). A reset by CC.EN keeps the admin queue's registers, all
// others do not.
func (c *Controller) resetLocked(all bool) {
	c.state.Store(uint32(stateDisabled)) // queues stop at their next command
	c.dropQueues()
	c.state.Store(uint32(stateDisabled)) // one of them may have failed meanwhile
	c.due = time.Time{}
	c.cc &^= 1 // CC.EN
	if all {
		c.cc = 0
		c.bar.store(regAQA, 0)
		c.bar.store64(regASQ, 0)
		c.bar.store64(regACQ, 0)
	}
	c.bar.store64(regCAP, c.capabilities())
	c.bar.store(regVS, uint32(c.opt.Version))
	c.bar.store(regINTMS, 0)
	c.bar.store(regINTMC, 0)
	c.bar.store(regCC, uint32(c.cc))
	c.bar.store(regCSTS, 0)
	if c.opt.Version >= Version20 {
		c.bar.store(regCRTO, uint32(capTimeout/(500*time.Millisecond)))
	}
	c.bar.clearDoorbells(c.opt.Queues)
	c.aers = nil
	c.events.reset()
	c.features = defaultFeatures(c)
	c.hostBuffer.reset()
	c.cached.Store(!c.opt.NoWriteCache)
}

// writeCC is a write to Controller Configuration ([BASE] 3.1.3.5): it enables, resets and shuts down.
func (c *Controller) writeCC(v configuration) {
	old := c.cc
	c.cc = v
	c.bar.store(regCC, uint32(v))
	switch {
	case old.enabled() && !v.enabled():
		c.resetLocked(false)
	case !old.enabled() && v.enabled():
		c.setCSTS(0, cstsShutdownMask)
		c.enable()
	case v.enabled() && (old.mps() != v.mps() || old.css() != v.css() || old.ams() != v.ams()):
		// Only CC.EN, SHN and the I/O entry sizes may change while enabled; keep what the queues were made with.
		const fixed = 7<<4 | 15<<7 | 7<<11
		c.cc = v&^fixed | old&fixed
		c.bar.store(regCC, uint32(c.cc))
	}
	if v.shn() != 0 && v.shn() != old.shn() {
		c.shutdown()
	}
}

// enable starts the controller, or fails it where the host configured what is not supported.
func (c *Controller) enable() {
	page := uint64(c.cc.pageSize())
	aqa := c.bar.load(regAQA)
	asqs, acqs := aqa&0xfff+1, aqa>>16&0xfff+1
	asq, acq := c.bar.load64(regASQ), c.bar.load64(regACQ)
	bad := func(what string, v any) { c.fail("enabled with a bad "+what, "value", v) }
	switch {
	case c.cc.css() != 0 && (c.cc.css() != 6 || c.opt.Version < Version20):
		bad("CC.CSS", c.cc.css())
	case c.cc.mps() > mpsMax:
		bad("CC.MPS", c.cc.mps())
	case c.cc.ams() != 0:
		bad("CC.AMS", c.cc.ams())
	case c.cc.iosqes() != sqes && c.cc.iosqes() != 0:
		bad("CC.IOSQES", c.cc.iosqes())
	case c.cc.iocqes() != cqes && c.cc.iocqes() != 0:
		bad("CC.IOCQES", c.cc.iocqes())
	case asqs < 2:
		bad("AQA.ASQS", asqs-1)
	case acqs < 2:
		bad("AQA.ACQS", acqs-1)
	case asq == 0 || asq%page != 0 || !c.dma.mapped(asq, uint64(asqs)*sqeSize):
		bad("ASQ", asq)
	case acq == 0 || acq%page != 0 || !c.dma.mapped(acq, uint64(acqs)*cqeSize):
		bad("ACQ", acq)
	default:
		c.cq[0] = c.newCompQueue(0, acqs, acq)
		c.sq[0].Store(c.newSubQueue(0, asqs, asq, c.cq[0]))
		c.state.Store(uint32(stateStarting))
		c.due = time.Now().Add(c.opt.ReadyDelay)
		c.settle()
	}
}

// settle lets transitions happen whose time has come.
func (c *Controller) settle() {
	if c.closed || c.due.IsZero() || time.Now().Before(c.due) {
		return
	}
	c.due = time.Time{}
	if c.now() == stateStarting {
		c.state.Store(uint32(stateReady))
		c.setCSTS(cstsReady, 0)
	} else if c.bar.load(regCSTS)&cstsShutdownMask == cstsShutdownBusy {
		c.setCSTS(cstsShutdownDone, cstsShutdownMask)
	}
}

// shutdown is CC.SHN, normal or abrupt ([BASE] 3.6): commands stop, the volatile cache is written out. CSTS.RDY stays.
func (c *Controller) shutdown() {
	if c.now() == stateReady || c.now() == stateStarting {
		c.state.Store(uint32(stateShutdown))
		c.quiesceLocked()
	}
	c.setCSTS(cstsShutdownBusy, cstsShutdownMask)
	if !c.opt.ReadOnly {
		if err := c.flushAll(); err != nil {
			c.fail("flush at shutdown: " + err.Error())
			return
		}
	}
	c.due = time.Now().Add(c.opt.ShutdownDelay)
	c.settle()
}

// fail makes the controller fatal: CSTS.CFS is set and nothing is carried out until a reset. Any thread may call it.
func (c *Controller) fail(why string, args ...any) {
	c.state.Store(uint32(stateFatal))
	c.setCSTS(cstsFatal, 0)
	c.log.Error("controller fatal: "+why, args...)
}
