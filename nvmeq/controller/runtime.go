package controller

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
)

// When it is not the controller that fails but who runs the lanes (a kernel hangs, does not start, or the device is lost),
// the lanes move to a spare runtime:
//
//  1. Every lane is told to fail, so that a kernel that wakes up posts nothing more.
//  2. The controller is disabled. From here on it touches no memory: every command that was on its way is known dead.
//  3. Controller and lanes are set up again with the spare runtime's memory. Nothing of the old is used or given back as long
//     as a kernel may still run on it, and the queue pairs get other identifiers, whose doorbells the old kernels do not know.
//  4. Commands that had not ended are sent again, except a Flush that may have failed unseen (durable.go) and, with
//     Config.SpareReads, those that write.
//
// Data stays where it is, which must be where the CPU reaches it.

// RuntimeError is a failure of what runs the lanes, not of the controller.
type RuntimeError struct{ Err error }

func (e RuntimeError) Error() string { return e.Err.Error() }
func (e RuntimeError) Unwrap() error { return e.Err }

// Failover says that the lanes have moved to the spare runtime, and why.
type Failover struct {
	When     time.Time
	Why      string
	From, To string // the runtimes' names
	ReadOnly bool   // commands that write are refused since
}

// Failover is nil as long as the lanes are where they were.
func (c *Controller) Failover() *Failover { return c.failover.Load() }

// RuntimeFailed says that Config.Runtime failed. Its Close may then wait for ever, for a kernel that hangs.
func (c *Controller) RuntimeFailed() bool { return c.runtimeFailed.Load() }

// hasFailed says that rt has failed. Its memory is never given back: that could wait for ever, and a kernel may wake up on it.
func (c *Controller) hasFailed(rt gpu.Runtime) bool {
	return c.runtimeFailed.Load() && rt == c.cfg.Runtime
}

// endWait is how long kernels that were told to fail may take to end.
const endWait = 2 * time.Second

// failOver moves every lane to the spare runtime. The caller holds ladder and every queue pair.
func (c *Controller) failOver(queues []Queues, why RuntimeError) error {
	from := c.Runtime()
	c.runtimeFailed.Store(true)
	for _, q := range queues {
		q.Abandon()
	}
	switch {
	case c.cfg.Spare == nil:
		return fmt.Errorf("%w; nobody else can run the lanes", why)
	case c.failover.Load() != nil:
		return fmt.Errorf("%w; the lanes had moved before", why)
	case c.mirrored.Load():
		return fmt.Errorf("%w; data is in the device's memory, where lanes on the CPU do not reach it", why)
	}
	if err := c.stop(); err != nil {
		return fmt.Errorf("%w; stopping the controller: %w", why, err)
	}
	to, err := c.cfg.Spare()
	if err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	ended := haveEnded(queues)
	c.log.Error("the lanes have failed and move", "device", c.t.Name(), "from", from.Name(), "to", to.Name(), "why", why.Error(),
		"read-only", c.cfg.SpareReads)
	c.dropBAR()
	c.rt.Store(&to)
	c.failover.Store(&Failover{When: time.Now(), Why: why.Error(), From: from.Name(), To: to.Name(), ReadOnly: c.cfg.SpareReads})
	c.copies.Forget()
	if err := c.bringUp(); err != nil {
		return err
	}
	for _, q := range queues {
		if err := q.Move(ended); err != nil {
			return fmt.Errorf("moving the lanes to %s: %w", to.Name(), err)
		}
	}
	return nil
}

// haveEnded says whether no kernel runs on any lane, or ever will: all that was queued has ended, or the device is lost.
func haveEnded(queues []Queues) bool {
	var w poll.Waiter
	for end := time.Now().Add(endWait); ; w.Idle() {
		all := true
		for _, q := range queues {
			all = q.Ended() && all
		}
		if all || time.Now().After(end) {
			return all
		}
	}
}

// Quiesced runs f, which may wait for the device, while no resident kernel of the controller's lanes runs.
func (c *Controller) Quiesced(f func() error) error {
	if c.Runtime().Facts().CallerDriven {
		return f()
	}
	for _, q := range c.queuePairs() {
		inner := f
		f = func() error { return q.Quiesced(inner) }
	}
	return f()
}

// FailRuntime notes that Config.Runtime has failed.
func (c *Controller) FailRuntime() { c.runtimeFailed.Store(true) }
