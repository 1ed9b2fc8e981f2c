package controller

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// A reset of the controller, from Recover to its end:
//
//  1. resetting is set: callers that drive queue pairs leave them
//  2. Hold        waits until no caller works on a queue pair
//  3. Recall      the lanes answer every command, completed or not; the controller may still access their memory
//  4. stop        CC.EN is cleared, or the function is reset: all commands have ended (enable.go)
//  5. bringUp     enable; check that it is the same controller, with the same namespaces; queue count, events, power
//  6. Create      every queue pair is created again
//  7. Resume      the commands that had not completed are sent again
//  8. Release     callers go on
//
// If a kernel of a lane does not answer in step 3, or Recover was called with a RuntimeError, the lanes move to the spare runtime
// in place of steps 3 to 6 (runtime.go). If a step fails, or maxResets resets in a row did not help, the controller is out of
// service: Resume ends every command with that error.

// Queues is an owner of I/O queue pairs: an engine. Resets delete its queue pairs and have it create them again.
type Queues interface {
	// Hold returns when no caller works on the queue pairs. That stays so until Release.
	Hold()
	Release()
	// Completed says whether a command has succeeded since the last reset. Here and below the queue pairs are held.
	Completed() bool
	// Recall has the kernels answer every command under way, completed or not. The controller may still access their memory.
	Recall() error
	// Create creates the queue pairs.
	Create() error
	// Resume sends the recalled commands again. With failure, which is why the controller is out of service, it ends all
	// commands with that error instead.
	Resume(failure error)

	// Abandon has the kernels of the lanes post nothing more: the runtime that runs them has failed.
	Abandon()
	// Ended says whether no kernel of the lanes runs, or ever will.
	Ended() bool
	// Move gives the lanes memory and kernels of the controller's new runtime, and creates the queue pairs. ended says
	// that no kernel of the old runtime can ring their doorbells any more.
	Move(ended bool) error

	// Silence returns when no kernel of the lanes stores to a doorbell any more, for good: the device was taken away. The queue pairs are
	// not held.
	Silence() error

	// Quiesced runs f, which may wait for the device, while no resident kernel runs.
	Quiesced(f func() error) error
	Close() error
}

// Attach has q create its queue pairs. From then on q takes part in resets, and Close closes it.
func (c *Controller) Attach(q Queues) error {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	if err := q.Create(); err != nil {
		return err
	}
	c.mu.Lock()
	c.attached = append(c.attached, q)
	left := c.left
	c.mu.Unlock()
	if left {
		return q.Silence() // leave has not seen it
	}
	return nil
}

// Detach ends that and runs f, which deletes the queue pairs. No reset happens meanwhile.
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

// queuePairs is what is attached.
func (c *Controller) queuePairs() []Queues {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.attached)
}

// maxResets is how many resets in a row, without a command that succeeds between them, are tried.
const maxResets = 3

// Generation is the number of resets so far.
func (c *Controller) Generation() uint32 { return c.gen.Load() }

// Resetting says that a reset is under way or about to be: a caller that works on a queue pair must leave it.
func (c *Controller) Resetting() bool { return c.resetting.Load() }

// Recover resets the controller, unless that has happened since gen was read. The caller holds no queue pair.
func (c *Controller) Recover(gen uint32, why error) {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	c.recoverLocked(gen, why)
}

// steady is how long a controller works after a reset before what others do to it says nothing of that reset.
const steady = 10 * time.Second

// disabledByOthers is Recover for a controller whose CSTS says that it is not ready. That reset is not one in a row, unless the controller was ready for a
// short time only: a mount to which no request comes may see many suspends of the machine.
func (c *Controller) disabledByOthers(gen uint32, csts nvme.CSTS) {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	if time.Since(c.resetAt) > steady {
		c.resets = 0
	}
	c.recoverLocked(gen, fmt.Errorf("the controller is not enabled any more (%v): others have reset it, or its power was off", csts))
}

func (c *Controller) recoverLocked(gen uint32, why error) {
	if c.gen.Load() != gen || c.Err() != nil {
		return
	}
	c.resetting.Store(true) // callers leave their lanes at the next poll
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
		c.t.Reset() // it must not write to memory that is about to be freed
	} else {
		err, failed := why, RuntimeError{}
		restarts := !errors.As(why, &failed)
		if restarts {
			c.log.Error("resetting the controller", "device", c.t.Name(), "why", why.Error())
			err = c.restart(queues)
		}
		if errors.As(err, &failed) {
			err = c.failOver(queues, failed)
		}
		switch {
		case err == nil:
			c.log.Warn("controller reset", "device", c.t.Name())
		case restarts:
			c.fail(fmt.Errorf("reset failed: %w; it was reset because: %w", err, why))
			c.t.Reset()
		default: // err says why the lanes were to move, too
			c.fail(err)
			c.t.Reset()
		}
	}
	c.resetAt = time.Now()
	failure := c.Err()
	for _, q := range queues {
		q.Resume(failure)
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

// restart is steps 3 to 6. The caller holds resetMu and every queue pair.
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

// bringUp enables the controller again, after stop: it has no queues and accesses no memory (Base §3.7.2).
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

// sameController is an error if another device is in the place of this one, or its namespaces have changed.
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

// Reset resets the controller. Commands under way are sent again.
func (c *Controller) Reset() error {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	c.resets = 0 // this reset is not for a failure
	c.recoverLocked(c.Generation(), errors.New("it was asked for"))
	return c.Err()
}
