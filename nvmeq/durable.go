package nvmeq

import (
	"errors"
	"fmt"
)

// A Flush that has failed is never sent again, and neither is a write with FUA that ended with an error. The specification says what
// success means, that the data is on the non-volatile medium (Base §7.1; NVM §3.2.6, FUA), and nothing of what becomes of the data
// after a failure: a controller may have dropped it, and then has nothing left to fail on the second time. That a status lacks Do Not
// Retry (Base §3.3.3.2.1) says that the command may succeed, not that what it succeeds with is what was written. So:
//
//   - Whatever the status of a failed Flush, the caller is told. From then on no Flush and no write with FUA of this controller ends
//     well, until it is opened anew: they are sent all the same, for what they may save.
//   - A Flush whose result nobody saw (it timed out, its queue pair was deleted, the controller was reset, the lanes moved) may have
//     failed: it counts as failed. But of a FlushWitness it is asked again.
//   - A write with FUA whose result nobody saw is sent again: it brings its own data along, so that success is about that.

// FlushWitness is implemented by controllers that remember a Flush that failed, also across resets: every later one fails too. So the
// answer to the second tells how the first one ended.
type FlushWitness interface{ RemembersFailedFlush() }

// ErrNotDurable is wrapped by the errors of commands that would promise that something is durable when that is not known.
var ErrNotDurable = errors.New("it is not known to be durable what was written")

// promises says whether success means that something is durable.
func (c *Command) promises() bool {
	return c.Op == IOFlush || c.FUA && (c.Op == IOWrite || c.Op == IOWriteZeroes)
}

// NotDurable is what a Flush of this controller failed with, nil as long as none has.
func (c *Controller) NotDurable() error {
	if p := c.unproved.Load(); p != nil {
		return *p
	}
	return nil
}

// flushFailed notes that a Flush has failed.
func (c *Controller) flushFailed(why error) {
	if c.unproved.CompareAndSwap(nil, &why) {
		c.log.Error("a Flush failed: from now on nothing is said to be durable", "device", c.t.Name(), "why", why.Error())
	}
}

// believe is the error of a command that ended well.
func (c *Controller) believe(cmd *Command) error {
	if why := c.NotDurable(); why != nil && cmd.promises() {
		return fmt.Errorf("nvme: %s: %w since: %w", cmd, ErrNotDurable, why)
	}
	return nil
}

// unseen is the error of a command whose result was lost, if it must not be sent again.
func (c *Controller) unseen(cmd *Command) error {
	if _, ok := c.t.(FlushWitness); ok || cmd.Op != IOFlush {
		return nil
	}
	err := fmt.Errorf("nvme: %s: %w: its result was lost", cmd, ErrNotDurable)
	c.flushFailed(err)
	return err
}
