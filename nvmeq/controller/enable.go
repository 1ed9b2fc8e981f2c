package controller

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// The states of a controller, by CC and CSTS (Base §3.5): disabled, enabled, shut down.

// CSTS reads Controller Status.
func (c *Controller) CSTS() nvme.CSTS { return nvme.CSTS(c.t.Read32(nvme.RegCSTS)) }

// readCapabilities reads CAP and VS, and refuses what this host cannot drive.
func (c *Controller) readCapabilities() error {
	c.cap, c.vs = nvme.CAP(c.t.Read64(nvme.RegCAP)), nvme.VS(c.t.Read32(nvme.RegVS))
	switch {
	case uint64(c.cap) == ^uint64(0):
		return fmt.Errorf("CAP reads all ones: no device answers (memory space off, or it is gone)")
	case c.cap == 0 || c.vs == 0:
		return fmt.Errorf("CAP %#x, version %v: this is no NVMe controller", uint64(c.cap), c.vs)
	case c.cap.MQES() < 2:
		return fmt.Errorf("CAP.MQES allows queues of %d entry; NVMe demands at least 2", c.cap.MQES())
	case c.cap.MPSMIN() > c.cap.MPSMAX():
		return fmt.Errorf("CAP.MPSMIN (%d bytes) is above CAP.MPSMAX (%d)", c.cap.MPSMIN(), c.cap.MPSMAX())
	case c.cap.MPSMIN() > 64<<10:
		return fmt.Errorf("CAP.MPSMIN demands host pages of %d bytes; up to 65536 are supported", c.cap.MPSMIN())
	}
	c.stride = c.cap.Stride()
	if last := c.stride.End(0); int64(len(c.t.BAR())) < last {
		return fmt.Errorf("BAR 0 has %d bytes; the admin doorbells end at %d", len(c.t.BAR()), last)
	}
	c.mps = c.cap.MPSMIN() // 4096 unless the controller cannot
	return nil
}

// commandSet chooses CC.CSS (Base §3.1.3.5).
func (c *Controller) commandSet() (int, error) {
	switch css := c.cap.CSS(); {
	case css&nvme.CSSNVM != 0:
		return nvme.CCCSSNVM, nil
	case css&nvme.CSSIOCS != 0:
		return nvme.CCCSSAll, nil
	default:
		return 0, fmt.Errorf("CAP.CSS %#02x: the controller does not offer the NVM command set", uint8(css))
	}
}

// readyTimeout is the longest that CSTS.RDY may take to follow CC.EN (Base §3.5.3, §3.5.4).
func (c *Controller) readyTimeout() time.Duration {
	d := c.cap.TO()
	if c.cap.CRWMS() {
		d = max(d, nvme.CRTO(c.t.Read32(nvme.RegCRTO)).CRWMT())
	}
	return max(d, 500*time.Millisecond) // one unit, for controllers that report 0
}

// waitReady waits until CSTS.RDY is want.
func (c *Controller) waitReady(want bool) error {
	verb := map[bool]string{true: "enabling", false: "disabling"}[want]
	return c.waitStatus(verb, c.readyTimeout(), " (CAP.TO)", want, func(csts nvme.CSTS) bool { return csts.RDY() == want })
}

// waitStatus waits until CSTS is as asked for, for limit at most, whose source is said with it. verb is what the controller does until then, which a fatal error of it ends if fatal.
func (c *Controller) waitStatus(verb string, limit time.Duration, source string, fatal bool, is func(nvme.CSTS) bool) error {
	var w poll.Waiter
	var waited nap.Wait
	for {
		csts := c.CSTS()
		switch {
		case csts.Gone():
			return fmt.Errorf("%s: the device is gone (CSTS reads all ones)", verb)
		case is(csts):
			return nil
		case csts.CFS() && fatal:
			return fmt.Errorf("%s: the controller reports a fatal error, %v", verb, csts)
		case waited.Over(limit):
			return fmt.Errorf("%s %w after %v%s, %v", verb, ErrTimeout, limit, source, csts)
		}
		if c.Step(0) {
			w.Progress()
		} else {
			w.Idle()
		}
	}
}

// disable clears CC.EN: the controller deletes its queues and accesses host memory no more.
func (c *Controller) disable() error {
	csts := c.CSTS()
	if csts.Gone() {
		return fmt.Errorf("disabling: the device is gone (CSTS reads all ones)")
	}
	cc := nvme.CC(c.t.Read32(nvme.RegCC))
	if cc.EN() && !csts.RDY() && !csts.CFS() {
		// EN may only be cleared once RDY has followed its setting (Base §3.5.4); a controller that never gets there
		// is cleared nevertheless.
		c.waitReady(true)
	}
	if cc.EN() || cc.SHN() != nvme.SHNNone {
		c.t.Write32(nvme.RegCC, uint32(cc.WithEN(false).WithSHN(nvme.SHNNone)))
	}
	return c.waitReady(false)
}

// stop disables the controller, after a function-level reset if it does not become disabled without.
func (c *Controller) stop() error {
	err := c.disable()
	if err == nil {
		return nil
	}
	if reset := c.t.Reset(); reset != nil {
		return errors.Join(err, reset)
	}
	if again := c.disable(); again != nil {
		return fmt.Errorf("%w; after a function-level reset: %w", err, again)
	}
	return nil
}

// enable sets the admin queue and CC (Base §3.5.1 steps 2 to 5).
func (c *Controller) enable() error {
	css, err := c.commandSet()
	if err != nil {
		return err
	}
	c.admin.Lock()
	c.aq.reset()
	c.admin.Unlock()
	c.t.Write32(nvme.RegAQA, uint32(nvme.NewAQA(adminEntries, adminEntries)))
	c.t.Write64(nvme.RegASQ, uint64(c.aq.d.IOVA))
	c.t.Write64(nvme.RegACQ, uint64(c.aq.d.IOVA)+uint64(c.aq.page))
	// IOSQES and IOCQES are the sizes that this host uses; identify checks later that the controller supports them.
	cc := nvme.CC(0).WithCSS(css).WithMPS(c.mps).WithIOSQES(nvme.SQESize).WithIOCQES(nvme.CQESize).WithEN(true)
	c.t.Write32(nvme.RegCC, uint32(cc))
	return c.waitReady(true)
}

// shutdown asks for a shutdown (Base §3.6), waits for it, and disables the controller. Its queues are gone after it.
func (c *Controller) shutdown(kind nvme.SHN) error {
	limit := shutdownTimeout
	if d := time.Duration(c.ident.RTD3E) * time.Microsecond; d > limit {
		limit = d
	}
	c.t.Write32(nvme.RegCC, uint32(nvme.CC(c.t.Read32(nvme.RegCC)).WithSHN(kind)))
	if err := c.waitStatus("nvme: shutting down", limit, "", true, func(csts nvme.CSTS) bool { return csts.SHST() == nvme.SHSTComplete }); err != nil {
		return err
	}
	return c.disable()
}
