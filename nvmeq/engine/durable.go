package engine

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// This file says when the success of a command means that data is durable. The rules are in controller/durable.go.

// ErrNotDurable is wrapped by the errors of commands that would promise that something is durable when that is not known.
var ErrNotDurable = errors.New("it is not known to be durable what was written")

// makesDurable says whether success means that something is durable.
func (c *Command) makesDurable() bool {
	return c.Op == nvme.IOFlush || c.FUA && (c.Op == nvme.IOWrite || c.Op == nvme.IOWriteZeroes)
}

// checkDurable is the error of a command that ended well.
func (e *Engine) checkDurable(cmd *Command) error {
	if why := e.c.NotDurable(); why != nil && cmd.makesDurable() {
		return fmt.Errorf("nvme: %s: %w since: %w", cmd, ErrNotDurable, why)
	}
	return nil
}

// resultLost is the error of a command whose result was lost, if it must not be sent again.
func (e *Engine) resultLost(cmd *Command) error {
	if e.c.StickyFlush() || cmd.Op != nvme.IOFlush {
		return nil
	}
	err := fmt.Errorf("nvme: %s: %w: its result was lost", cmd, ErrNotDurable)
	e.c.FlushFailed(err)
	return err
}
