package controller

import (
	"fmt"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// A Flush that has failed is never sent again, and neither is a write with FUA that ended with an error. The specification says that
// after success the data is on the non-volatile medium (Base §7.1; NVM §3.2.6, FUA). It does not say what becomes of the data
// after a failure: a controller may have dropped it, and then the second Flush succeeds without it. A clear Do Not Retry bit (Base
// §3.3.3.2.1) says that the command may succeed, not that the data is still there. So:
//
//   - The caller is told of every failed Flush, whatever its status. From then on every Flush and every write with FUA of this
//     controller fails, until it is opened anew. They are sent all the same, for the data that they may save.
//   - A Flush whose result was lost (it timed out, its queue pair was deleted, the controller was reset, the lanes moved) may have
//     failed: it counts as failed. Only to a StickyFlush controller it is sent again.
//   - A controller that has lost power has lost the contents of its volatile write cache. Its SMART log counts that (Base
//     §5.16.1.3); it is read again after each reset.
//   - A write with FUA whose result was lost is sent again: it carries its data, so that success means that data.

// StickyFlush is a Transport to a controller that remembers a failed Flush, also across resets: every later Flush fails too. So
// the status of the second one says how the first one ended.
type StickyFlush interface{ RemembersFailedFlush() }

// StickyFlush says whether the Transport is a StickyFlush.
func (c *Controller) StickyFlush() bool {
	_, ok := c.t.(StickyFlush)
	return ok
}

// NotDurable is the error of the first Flush that failed, nil as long as none has.
func (c *Controller) NotDurable() error {
	if p := c.flushErr.Load(); p != nil {
		return *p
	}
	return nil
}

// FlushFailed records that a Flush has failed.
func (c *Controller) FlushFailed(why error) {
	if c.flushErr.CompareAndSwap(nil, &why) {
		c.log.Error("a Flush failed: from now on nothing is said to be durable", "device", c.t.Name(), "why", why.Error())
	}
}

// power is the counts of power cycles in the SMART log (Base §5.16.1.3); zero for a controller without them.
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

// samePower records a loss of power since the controller was opened: with it went the data that was not flushed.
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
