package softctl

// Feature identifiers ([BASE] figure "Feature Identifiers").
const (
	featArbitration   = 0x01
	featPower         = 0x02
	featTemperature   = 0x04
	featErrorRecovery = 0x05
	featWriteCache    = 0x06
	featQueues        = 0x07
	featCoalescing    = 0x08
	featVector        = 0x09
	featAtomicity     = 0x0a
	featAsyncEvents   = 0x0b
	featHostBuffer    = 0x0d
)

const (
	temperature     = 310 // K, always
	temperatureOver = 343 // the default threshold, WCTEMP
)

// features is what Set Features changes. Nothing is saved: a reset brings the defaults back.
type features struct {
	arbitration   uint32
	power         uint32
	over, under   uint16 // temperature thresholds
	errorRecovery []uint32
	coalescing    uint32
	vectors       []uint32 // Interrupt Vector Configuration, low dword: bit 16 is Coalescing Disable
	atomicity     uint32
	asyncEvents   uint32
	allottedSQ    uint32 // Number of Queues
	allottedCQ    uint32
}

func defaultFeatures(c *Controller) features {
	return features{
		over:          temperatureOver,
		errorRecovery: make([]uint32, len(c.ns)),
		vectors:       make([]uint32, c.opt.Queues+1),
		asyncEvents:   0xff, // all SMART warnings
		allottedSQ:    uint32(c.opt.Queues),
		allottedCQ:    uint32(c.opt.Queues),
	}
}

// Capabilities of a feature as Get Features with SEL 3 gives them.
const (
	featPerNS      = 1 << 1
	featChangeable = 1 << 2
)

func (c *Controller) featureCapabilities(fid uint32) (uint32, bool) {
	switch fid {
	case featArbitration, featPower, featTemperature, featQueues, featCoalescing, featVector, featAtomicity, featAsyncEvents:
		return featChangeable, true
	case featErrorRecovery:
		return featChangeable | featPerNS, true
	case featWriteCache:
		return featChangeable, !c.opt.NoWriteCache
	case featHostBuffer:
		return featChangeable, c.opt.HostBuffer > 0
	}
	return 0, false
}

// getFeatures is Get Features ([BASE] 5.15).
func (c *Controller) getFeatures(q *subQueue, cmd *command) (Status, uint32) {
	fid, sel := cmd.cdw10&0xff, cmd.cdw10>>8&7
	caps, ok := c.featureCapabilities(fid)
	if !ok || sel > 3 {
		return invalidField, 0
	}
	if sel == 3 {
		return success, caps
	}
	f := &c.features
	if sel != 0 { // nothing is saveable, so the saved value is the default
		d := defaultFeatures(c)
		f = &d
	}
	switch fid {
	case featArbitration:
		return success, f.arbitration
	case featPower:
		return success, f.power
	case featTemperature:
		switch tmpsel, thsel := cmd.cdw11>>16&15, cmd.cdw11>>20&3; {
		case tmpsel != 0 || thsel > 1: // the composite temperature is the only one
			return invalidField, 0
		case thsel == 0:
			return success, uint32(f.over)
		default:
			return success, uint32(f.under)
		}
	case featErrorRecovery:
		if _, ok := c.namespace(cmd.nsid); !ok {
			return invalidNamespace, 0
		}
		return success, f.errorRecovery[cmd.nsid-1]
	case featWriteCache:
		if sel != 0 || c.cached.Load() {
			return success, 1
		}
		return success, 0
	case featQueues:
		return success, f.allottedSQ - 1 | (f.allottedCQ-1)<<16
	case featCoalescing:
		return success, f.coalescing
	case featVector:
		iv := cmd.cdw11 & 0xffff
		if iv >= uint32(len(f.vectors)) {
			return invalidField, 0
		}
		return success, iv | f.vectors[iv]
	case featAtomicity:
		return success, f.atomicity
	case featHostBuffer:
		return c.getHostBuffer(q, cmd, sel != 0)
	default: // featAsyncEvents
		return success, f.asyncEvents
	}
}

// setFeatures is Set Features ([BASE] 5.27).
func (c *Controller) setFeatures(_ *subQueue, cmd *command) (Status, uint32) {
	fid, v := cmd.cdw10&0xff, cmd.cdw11
	caps, ok := c.featureCapabilities(fid)
	switch {
	case !ok:
		return invalidField, 0
	case cmd.cdw10>>31 != 0: // SV
		return featureNotSaveable, 0
	case caps&featPerNS == 0 && cmd.nsid != 0 && cmd.nsid != nsidAll:
		return featureNotNamespaceBound, 0
	}
	f := &c.features
	switch fid {
	case featArbitration:
		f.arbitration = v
	case featPower:
		if v&31 != 0 { // NPSS is 0
			return invalidField, 0
		}
		f.power = v & 0xff
	case featTemperature:
		return c.setTemperature(v), 0
	case featErrorRecovery:
		if v>>16&1 != 0 { // DULBE: not offered by NSFEAT
			return invalidField, 0
		}
		if cmd.nsid == nsidAll {
			for i := range f.errorRecovery {
				f.errorRecovery[i] = v & 0xffff
			}
			return success, 0
		}
		if _, ok := c.namespace(cmd.nsid); !ok {
			return invalidNamespace, 0
		}
		f.errorRecovery[cmd.nsid-1] = v & 0xffff
	case featWriteCache:
		return c.setWriteCache(v&1 != 0), 0
	case featQueues:
		return c.setQueues(v)
	case featCoalescing:
		f.coalescing = v & 0xffff
	case featVector:
		iv := v & 0xffff
		if iv >= uint32(len(f.vectors)) {
			return invalidField, 0
		}
		f.vectors[iv] = v & (1 << 16)
	case featAtomicity:
		f.atomicity = v & 1
	case featHostBuffer:
		return c.setHostBuffer(cmd), 0
	case featAsyncEvents:
		f.asyncEvents = v
		c.checkTemperature()
	}
	return success, 0
}

// setWriteCache switches the volatile write cache. What was written under it becomes durable before it is off; writes
// that are under way are waited for, so that none slips between.
func (c *Controller) setWriteCache(on bool) Status {
	c.cached.Store(on)
	if on || c.opt.ReadOnly {
		return success
	}
	c.quiesceLocked()
	if err := c.flushAll(); err != nil {
		c.cached.Store(true)
		return c.mediaStatus("flush", c.ns[0], c.ns[0].base, WriteFault, err)
	}
	return success
}

// setQueues is Number of Queues ([BASE] 5.27.1.5). Both counts are 0's based.
func (c *Controller) setQueues(v uint32) (Status, uint32) {
	sq, cq := v&0xffff, v>>16
	if sq == 0xffff || cq == 0xffff {
		return invalidField, 0
	}
	for i := 1; i < len(c.cq); i++ {
		if c.cq[i] != nil || c.sq[i].Load() != nil {
			return commandSequenceError, 0
		}
	}
	c.features.allottedSQ = min(sq+1, uint32(c.opt.Queues))
	c.features.allottedCQ = min(cq+1, uint32(c.opt.Queues))
	return success, c.features.allottedSQ - 1 | (c.features.allottedCQ-1)<<16
}

// setTemperature is Temperature Threshold. TMPSEL 15 means every sensor, of which there is one.
func (c *Controller) setTemperature(v uint32) Status {
	tmpsel, thsel := v>>16&15, v>>20&3
	if tmpsel != 0 && tmpsel != 15 || thsel > 1 {
		return invalidField
	}
	if thsel == 0 {
		c.features.over = uint16(v)
	} else {
		c.features.under = uint16(v)
	}
	c.checkTemperature()
	return success
}

// tooHot says that the composite temperature is at or beyond a threshold. An under threshold of 0 is none.
func (f *features) tooHot() bool { return temperature >= f.over || temperature <= f.under }

func (c *Controller) checkTemperature() {
	if c.features.tooHot() && c.features.asyncEvents&2 != 0 {
		c.events.add(eventTemperature)
	}
}
