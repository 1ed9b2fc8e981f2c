package engine

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// When the success of a command means that data is durable: the rules are in controller/durable.go.

// ErrNotDurable is wrapped by the errors of commands that may not report data as durable, because an earlier Flush failed or its
// result was lost.
var ErrNotDurable = errors.New("what was written may not be durable")

// makesDurable says whether success of the command means that data is durable: Flush, and writes with FUA.
func (c *Command) makesDurable() bool {
	return c.Op == nvme.IOFlush || c.FUA && (c.Op == nvme.IOWrite || c.Op == nvme.IOWriteZeroes)
}

// checkDurable is the error of a command that completed with success.
func (e *Engine) checkDurable(cmd *Command) error {
	if why := e.c.NotDurable(); why != nil && cmd.makesDurable() {
		return fmt.Errorf("nvme: %s: %w since: %w", cmd, ErrNotDurable, why)
	}
	return nil
}

// resultLost is the error of a command without a completion, nil if it may be sent again.
func (e *Engine) resultLost(cmd *Command) error {
	if e.c.StickyFlush() || cmd.Op != nvme.IOFlush {
		return nil
	}
	err := fmt.Errorf("nvme: %s: %w: its result was lost", cmd, ErrNotDurable)
	e.c.FlushFailed(err)
	return err
}
