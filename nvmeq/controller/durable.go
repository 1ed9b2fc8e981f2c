package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// A Flush that has failed is never sent again, and neither is a write with FUA that ended with an error. The specification says what
// success means, that the data is on the non-volatile medium (Base §7.1; NVM §3.2.6, FUA), and nothing of what becomes of the data
// after a failure: a controller may have dropped it, and then has nothing left to fail on the second time. That a status lacks Do Not
// Retry (Base §3.3.3.2.1) says that the command may succeed, not that what it succeeds with is what was written. So:
//
//   - Whatever the status of a failed Flush, the caller is told. From then on no Flush and no write with FUA of this controller ends
//     well, until it is opened anew: they are sent all the same, for what they may save.
//   - A Flush whose result nobody saw (it timed out, its queue pair was deleted, the controller was reset, the lanes moved) may have
//     failed: it counts as failed. But of a StickyFlush it is asked again.
//   - A controller that has lost power meanwhile has lost what its volatile write cache held. Its SMART log counts that (Base
//     §5.16.1.3); it is read again after each reset.
//   - A write with FUA whose result nobody saw is sent again: it brings its own data along, so that success is about that.

// StickyFlush is implemented by controllers that remember a Flush that failed, also across resets: every later one fails too. So the
// answer to the second tells how the first one ended.
type StickyFlush interface{ RemembersFailedFlush() }

// StickyFlush says whether the controller is a StickyFlush.
func (c *Controller) StickyFlush() bool {
	_, ok := c.t.(StickyFlush)
	return ok
}

// NotDurable is what a Flush of this controller failed with, nil as long as none has.
func (c *Controller) NotDurable() error {
	if p := c.flushErr.Load(); p != nil {
		return *p
	}
	return nil
}

// FlushFailed notes that a Flush has failed.
func (c *Controller) FlushFailed(why error) {
	if c.flushErr.CompareAndSwap(nil, &why) {
		c.log.Error("a Flush failed: from now on nothing is said to be durable", "device", c.t.Name(), "why", why.Error())
	}
}

// power is what a controller counts of its power (Base §5.16.1.3); the zero value is one that does not tell.
type power struct{ cycles, unsafe string }

// readPower reads it without acknowledging events (RAE, since 1.3).
func (c *Controller) readPower() (power, error) {
	b := make([]byte, nvme.SMARTSize)
	cdw10 := uint32(nvme.LIDSMART) | uint32(len(b)/4-1)<<16
	if c.vs.AtLeast(1, 3) {
		cdw10 |= 1 << 15
	}
	_, err := c.adminRead(nvme.SQE{Opcode: nvme.AdminGetLogPage, NSID: 0xffffffff, CDW10: cdw10}, b)
	if nvme.Refused(err) {
		return power{}, nil
	}
	if err != nil {
		return power{}, err
	}
	s, err := nvme.DecodeSMART(b)
	if err != nil {
		return power{}, err
	}
	return power{s.PowerCycles.String(), s.UnsafeShutdowns.String()}, nil
}

// samePower notes whether the controller has lost power since it was opened, and with it what was not flushed.
func (c *Controller) samePower() error {
	now, err := c.readPower()
	if err != nil {
		return err
	}
	if was := c.power; now != was && was != (power{}) && c.ident.VWC.Present() {
		c.FlushFailed(fmt.Errorf("the controller lost power: %s power cycles and %s unsafe shutdowns now, %s and %s before",
			now.cycles, now.unsafe, was.cycles, was.unsafe))
	}
	return nil
}
