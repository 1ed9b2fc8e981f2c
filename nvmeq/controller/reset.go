package controller

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Queues is what owns I/O queue pairs of a controller, an engine: a reset ends them, and has them created again.
type Queues interface {
	// Hold returns when nothing works on the queue pairs. That stays so until Release.
	Hold()
	Release()
	// Completed says whether a command has ended well since the last reset. The queue pairs are held here and below.
	Completed() bool
	// Recall gets back every command under way, completed or not. The controller may still use their memory.
	Recall() error
	// Create creates the queue pairs.
	Create() error
	// Resume sends the recalled commands again; with an error, which says why the controller is out of service, it ends
	// all commands with that.
	Resume(dead error)

	// Abandon has the kernels of the lanes post nothing more: the runtime that runs them has failed.
	Abandon()
	// Ended says whether no kernel of the lanes runs, or ever will.
	Ended() bool
	// Move gives the lanes memory and kernels of the controller's new runtime, and creates the queue pairs. ended says
	// that no kernel of the old runtime can ring their doorbells any more.
	Move(ended bool) error

	// Quiesced runs f, which may wait for the device, while no resident kernel runs.
	Quiesced(f func() error) error
	Close() error
}

// Attach has q create its queue pairs, and take part in resets from then on.
func (c *Controller) Attach(q Queues) error {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	if err := q.Create(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.attached = append(c.attached, q)
	return nil
}

// Detach ends that, and runs f, which deletes the queue pairs. No reset is under way meanwhile.
func (c *Controller) Detach(q Queues, f func() error) error {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	c.mu.Lock()
	if i := slices.Index(c.attached, q); i >= 0 {
		c.attached = slices.Delete(c.attached, i, i+1)
	}
	c.mu.Unlock()
	return f()
}

// queuePairs are all that are attached.
func (c *Controller) queuePairs() []Queues {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.attached)
}

// maxResets is how many resets in a row, without a completed command between them, a controller is granted.
const maxResets = 3

// Generation counts resets.
func (c *Controller) Generation() uint32 { return c.gen.Load() }

// Resetting says that a reset is under way or about to be: what works on a queue pair must leave it.
func (c *Controller) Resetting() bool { return c.resetting.Load() }

// Recover resets the controller, unless that has happened since gen was read. The caller holds no queue pair.
func (c *Controller) Recover(gen uint32, why error) {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	c.recoverLocked(gen, why)
}

func (c *Controller) recoverLocked(gen uint32, why error) {
	if c.gen.Load() != gen || c.Err() != nil {
		return
	}
	c.resetting.Store(true) // drivers leave their lanes at their next turn
	queues := c.queuePairs()
	for _, q := range queues {
		q.Hold()
	}
	for _, q := range queues {
		if q.Completed() {
			c.resets = 0
		}
	}
	c.resets++
	if c.resets > maxResets {
		c.fail(fmt.Errorf("%d resets did not help: %w", maxResets, why))
		c.t.Reset() // it must not write to memory that is no longer its own
	} else {
		err, failed := why, RuntimeError{}
		if !errors.As(why, &failed) {
			c.log.Error("resetting the controller", "device", c.t.Name(), "why", why.Error())
			err = c.restart(queues)
		}
		if errors.As(err, &failed) {
			err = c.failOver(queues, failed)
		}
		if errors.As(err, &failed) {
			c.fail(err)
			c.t.Reset()
		} else if err != nil {
			c.fail(fmt.Errorf("reset failed: %w; it was reset because: %w", err, why))
			c.t.Reset()
		} else {
			c.log.Warn("controller reset", "device", c.t.Name())
		}
	}
	dead := c.Err()
	for _, q := range queues {
		q.Resume(dead)
	}
	c.gen.Add(1)
	c.resetting.Store(false)
	for _, q := range queues {
		q.Release()
	}
}

// AwaitReset returns when the reset under way is over.
func (c *Controller) AwaitReset() {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
}

// restart brings the controller from whatever state back to where it was. The caller holds ladder and every queue pair.
func (c *Controller) restart(queues []Queues) error {
	for _, q := range queues {
		if err := q.Recall(); err != nil {
			return err
		}
	}
	if err := c.stop(); err != nil {
		return err
	}
	if err := c.bringUp(); err != nil {
		return err
	}
	for _, q := range queues {
		if err := q.Create(); err != nil {
			return err
		}
	}
	return nil
}

// bringUp enables the controller again. It was disabled, has forgotten its queues and touches no memory (Base §3.7.2).
func (c *Controller) bringUp() error {
	if err := c.enable(); err != nil {
		return err
	}
	if err := c.sameController(); err != nil {
		return err
	}
	n, err := c.start()
	if err != nil {
		return err
	}
	if n < c.queues {
		return fmt.Errorf("the controller now gives %d I/O queue pairs instead of %d", n, c.queues)
	}
	return c.samePower()
}

// sameController refuses to go on if another device has taken the place of ours.
func (c *Controller) sameController() error {
	b, err := c.identifyCmd(nvme.CNSController, 0, 0)
	if err != nil {
		return err
	}
	now, err := nvme.DecodeIdentifyController(b)
	if err != nil {
		return err
	}
	if now.SN != c.ident.SN || now.MN != c.ident.MN {
		return fmt.Errorf("after the reset the controller is %q (%q), before it was %q (%q)", now.MN, now.SN, c.ident.MN, c.ident.SN)
	}
	for _, ns := range c.namespaces {
		if ns.Unusable != nil {
			continue
		}
		again, err := c.identifyNamespace(ns.ID)
		if err != nil {
			return err
		}
		if again.Unusable != nil || again.BlockSize != ns.BlockSize || again.Blocks < ns.Blocks {
			return fmt.Errorf("after the reset namespace %d has %d blocks of %d bytes, before it had %d of %d",
				ns.ID, again.Blocks, again.BlockSize, ns.Blocks, ns.BlockSize)
		}
	}
	return nil
}

// Reset resets the controller as the last rung of the ladder would; commands under way are sent again.
func (c *Controller) Reset() error {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	c.resets = 0 // this one is not for a failure
	c.recoverLocked(c.Generation(), errors.New("it was asked for"))
	return c.Err()
}
