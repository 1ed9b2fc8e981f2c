package nvmeq

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
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

// laneError is a failure of who runs the lanes.
type laneError struct{ err error }

func (e laneError) Error() string { return e.err.Error() }
func (e laneError) Unwrap() error { return e.err }

// Failover says that the lanes have moved to the spare runtime, and why.
type Failover struct {
	When     time.Time
	Why      string
	From, To string // the runtimes' names
	ReadOnly bool   // commands that write are refused since
}

// Failover is nil as long as the lanes are where they were.
func (c *Controller) Failover() *Failover { return c.move.Load() }

// RuntimeFailed says that Config.Runtime failed. Its Close may then wait for ever, for a kernel that hangs.
func (c *Controller) RuntimeFailed() bool { return c.failed.Load() }

// hasFailed says that rt has failed. Its memory is never given back: that could wait for ever, and a kernel may wake up on it.
func (c *Controller) hasFailed(rt gpu.Runtime) bool { return c.failed.Load() && rt == c.cfg.Runtime }

// ErrReadOnly is wrapped by the errors of commands that would write and are refused.
var ErrReadOnly = errors.New("nothing is written any more")

// refuses says why a command that makes sense is not carried out all the same.
func (c *Controller) refuses(cmd *Command) error {
	f := c.move.Load()
	if f == nil || !f.ReadOnly {
		return nil
	}
	switch cmd.Op {
	case IORead, IOCompare, IOVerify, IOFlush:
		return nil
	}
	return fmt.Errorf("%s: %w since the lanes failed on %s: %s", cmd, ErrReadOnly, f.From, f.Why)
}

// endWait is how long kernels that were told to fail may take to end.
const endWait = 2 * time.Second

// moveLanes moves every lane to the spare runtime. The caller holds ladder and every drive.
func (c *Controller) moveLanes(engines []*Engine, lanes []*lane, why laneError) error {
	from := c.runtime()
	c.failed.Store(true)
	for _, l := range lanes {
		l.created = false
		l.deaf.Store(true)
		atomic.StoreUint32(&l.control.Command, kernels.CommandFail)
	}
	switch {
	case c.cfg.Spare == nil:
		return fmt.Errorf("%w; nobody else can run the lanes", why)
	case c.move.Load() != nil:
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
	ended := haveEnded(lanes)
	c.log.Error("the lanes have failed and move", "device", c.t.Name(), "from", from.Name(), "to", to.Name(), "why", why.Error(),
		"read-only", c.cfg.SpareReads)
	c.forgetBAR()
	c.rt.Store(&to)
	c.move.Store(&Failover{When: time.Now(), Why: why.Error(), From: from.Name(), To: to.Name(), ReadOnly: c.cfg.SpareReads})
	c.copies.forget()
	if err := c.bringUp(); err != nil {
		return err
	}
	for _, e := range engines {
		if err := e.rehouse(ended); err != nil {
			return fmt.Errorf("moving the lanes to %s: %w", to.Name(), err)
		}
	}
	return nil
}

// haveEnded says whether no kernel runs on any lane, or ever will: all that was queued has ended, or the device is lost.
func haveEnded(lanes []*lane) bool {
	var w poll.Waiter
	for end := time.Now().Add(endWait); ; w.Idle() {
		all := true
		for _, l := range lanes {
			done, err := l.stream.Done()
			all = all && (done || err != nil)
		}
		if all || time.Now().After(end) {
			return all
		}
	}
}

// rehouse gives the engine works of the controller's new runtime. What was on its way waits to be sent again.
func (e *Engine) rehouse(ended bool) error {
	qids := make([]uint16, len(e.lanes))
	for i, l := range e.lanes {
		qids[i] = l.qid
	}
	if !ended {
		fresh := e.c.takeQIDs(len(qids))
		if len(fresh) < len(qids) {
			return fmt.Errorf("%d queue pairs are free and %d are needed: the old ones' doorbells may still be rung by a kernel that hangs",
				len(fresh), len(qids))
		}
		qids = fresh
	}
	var w works
	g, err := w.build(e, len(qids))
	if err != nil {
		return errors.Join(err, w.close(e.c))
	}
	old := e.works
	e.statsMu.Lock()
	for i, l := range e.lanes {
		l.evict()
		l.base = l.stats()
		if err = l.place(&w, g, qids[i]); err != nil {
			break
		}
	}
	e.works = w
	e.statsMu.Unlock()
	if err != nil {
		return err
	}
	if err := old.closeQueues(); err != nil {
		return err
	}
	for _, l := range e.lanes {
		l.deaf.Store(false)
		if err := l.create(); err != nil {
			return err
		}
	}
	return nil
}

// evict takes back what the lane was given: it keeps what it has answered; of the rest nobody knows.
func (l *lane) evict() {
	l.drain()
	for tag, s := range l.slots {
		if s.b != nil {
			l.slots[tag] = slot{}
			l.limbo = append(l.limbo, lost{s, 0, kernels.EngineQueueDead})
		}
	}
	for _, s := range l.limbo {
		s.cmd().page = -1
	}
	l.freeAll()
	l.lateBase, l.kicks, l.heard = 0, 0, time.Time{}
}

// refuseWrites ends what is not to be carried out any more, of all that the lane has not begun or is to begin again.
func (l *lane) refuseWrites() {
	if f := l.e.c.move.Load(); f == nil || !f.ReadOnly {
		return
	}
	again := l.limbo[:0]
	var ended []slot
	for _, s := range l.limbo {
		if l.e.c.refuses(s.cmd()) == nil {
			again = append(again, s)
		} else {
			ended = append(ended, s.slot)
		}
	}
	l.limbo = again
	retry := l.retry[:0]
	for _, s := range l.retry {
		if l.e.c.refuses(s.cmd()) == nil {
			retry = append(retry, s)
		} else {
			ended = append(ended, s)
		}
	}
	l.retry = retry
	l.mu.Lock()
	for _, b := range l.batches {
		for ; b.next < len(b.cmds); b.next++ {
			s := slot{b, b.next}
			if l.e.c.refuses(s.cmd()) == nil {
				l.retry = append(l.retry, s)
			} else {
				ended = append(ended, s)
			}
		}
	}
	l.mu.Unlock()
	for _, s := range ended {
		l.finish(s, fmt.Errorf("nvmeq: %w", l.e.c.refuses(s.cmd())))
	}
}
