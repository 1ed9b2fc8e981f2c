package engine

import (
	"fmt"
	"sync/atomic"

	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// The ladder: what the engine does about commands that timed out, or whose queue pair failed. Each rung is logged once.
//
//	1. Abort the command. When its completion has come, the command is sent again.
//	2. Delete the queue pair and create it again. The commands that were on it are sent again.
//	3. Reset the controller (CC.EN, then the transport's reset) and create all queue pairs again: controller/reset.go has the
//	   steps. If the runtime that runs the lanes has failed, not the controller, they move to another one (failover.go).
//	4. The controller is out of service: every command fails from now on.
//
// A command's caller is told of its failure only when the controller can no longer access the command's memory: after the
// command's own completion, the deletion of its queue, or the reset. For the same reason it is safe to send the command
// again: the first attempt can no longer overwrite anything. A Flush is not sent again: see durable.go.

// handleLost takes the lost commands up rungs 1 and 2, and leaves in broken why it takes rung 3. The caller holds drive.
func (l *lane) handleLost() {
	onlyTimeouts := true
	for _, s := range l.lost {
		onlyTimeouts = onlyTimeouts && s.kind == kernels.EngineTimeout
	}
	log := l.e.c.Log().With("device", l.e.c.Name(), "queue", l.qid)
	first := l.lost[0]
	if csts := l.e.c.CSTS(); csts.Gone() || csts.CFS() {
		l.broken = fmt.Errorf("%s not completed: %v", first.cmd(), csts)
		return
	}
	if onlyTimeouts {
		log.Warn("command timed out, aborting it", "command", first.cmd().String(), "after", l.e.cfg.Timeout, "others", len(l.lost)-1)
		over, err := l.abortLost()
		if err != nil {
			l.broken = err
			return
		}
		if over && 2*int(atomic.LoadUint32(&l.status.DeadCids)) < l.e.cfg.Depth-1 {
			l.resend()
			return
		}
	}
	l.rebuilds++
	if l.rebuilds > 3 {
		l.broken = fmt.Errorf("queue pair %d was rebuilt %d times and still completes nothing", l.qid, l.rebuilds-1)
		return
	}
	log.Warn("rebuilding the queue pair", "why", l.why(), "command", first.cmd().String())
	if err := l.rebuild(); err != nil {
		l.broken = err
	}
}

// why says what happened to the first lost command.
func (l *lane) why() string {
	switch l.lost[0].kind {
	case kernels.EngineTimeout:
		if atomic.LoadUint32(&l.status.Failed) != 0 {
			return "every command in flight timed out"
		}
		return "a command neither completed nor could be aborted"
	case kernels.EngineBadCQE:
		bad := atomic.LoadUint32(&l.status.BadCid)
		return fmt.Sprintf("the controller completed command %#x of queue %d, which was not in flight", bad&0xffff, bad>>16)
	}
	return "the lane gave the queue pair up"
}

// abortLost aborts the commands that timed out, and says whether all have ended since.
func (l *lane) abortLost() (bool, error) {
	l.late = true // a kernel has ended by now that has nothing else to do
	defer func() { l.late = false }()
	aborted := 0
	var w poll.Waiter
	var waited nap.Wait
	stale := true // the counters may be older than the results
	for {
		for ; aborted < len(l.lost); aborted++ {
			if l.lost[aborted].kind != kernels.EngineTimeout {
				return false, nil // the lane failed meanwhile
			}
			if _, err := l.e.c.Abort(l.qid, l.lost[aborted].cid); err != nil && !nvme.Refused(err) {
				return false, err
			}
		}
		if err := l.kick(); err != nil {
			return false, err
		}
		n := l.drain()
		if stale || n > 0 {
			if err := l.e.drv.sync(l); err != nil {
				return false, controller.RuntimeError{Err: fmt.Errorf("lane %d: %w", l.index, err)}
			}
			stale = false
			if n += l.drain(); len(l.lost) > aborted {
				continue
			}
		}
		// The kernel counts late completions: when as many have come as commands timed out, all have ended.
		if atomic.LoadUint64(&l.counters.Timeouts) == atomic.LoadUint64(&l.counters.Late)+l.lateBase {
			return len(l.lost) == aborted, nil
		}
		if waited.Over(l.e.cfg.AbortWait) {
			return false, nil
		}
		if l.e.step(l.qid) || n > 0 {
			w.Progress()
		} else {
			w.Idle()
		}
	}
}

// rebuild deletes the queue pair and creates it again.
func (l *lane) rebuild() error {
	if err := l.recall(); err != nil {
		return err
	}
	if err := l.delete(); err != nil {
		return err
	}
	if err := l.create(); err != nil {
		return err
	}
	l.settle()
	l.resend()
	return nil
}

// settle follows the end of a queue pair: late completions of its commands can no longer come.
func (l *lane) settle() {
	l.lateBase = atomic.LoadUint64(&l.counters.Timeouts) - atomic.LoadUint64(&l.counters.Late)
}

// resend queues the lost commands again, or ends those that have no tries left. Commands that were only on the same queue
// pair as the one that failed lose no try.
func (l *lane) resend() {
	for _, s := range l.lost {
		c := s.cmd()
		l.freePage(c)
		if err := l.e.resultLost(c); err != nil {
			l.finish(s.slot, err)
			continue
		}
		if s.kind != kernels.EngineQueueDead {
			if int(c.tries) >= l.e.cfg.Retries {
				l.finish(s.slot, l.giveUp(s))
				continue
			}
			c.tries++
		}
		l.retry = append(l.retry, s.slot)
	}
	l.lost = l.lost[:0]
}

// giveUp is the error of a command that has no tries left.
func (l *lane) giveUp(s lostCmd) error {
	c := s.cmd()
	err := fmt.Errorf("nvme: %s: the queue pair failed %d times", c, c.tries+1)
	if s.kind == kernels.EngineTimeout {
		err = fmt.Errorf("nvme: %s: %w after %v, %d times", c, controller.ErrTimeout, l.e.cfg.Timeout, c.tries+1)
	}
	if c.Op == nvme.IOFlush {
		l.e.c.FlushFailed(err)
	}
	return err
}
