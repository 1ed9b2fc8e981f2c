package engine

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// What happens to commands that were given up, rung by rung, each logged once:
//
//	1. Abort the command; when its completion comes after all, it is sent again.
//	2. Delete and create the queue pair; commands that were on it are sent again.
//	3. Reset the controller (CC.EN, then the transport's reset) and build all queue pairs again. If it is not the controller
//	   that fails but who runs the lanes, they move to another runtime meanwhile (failover.go).
//	4. The controller is out of service: every command fails, from now on.
//
// A command's caller hears of its failure only when the controller can no longer touch its memory: after its own
// completion, the deletion of its queue, or the reset. Sending it again is safe for the same reason: no ghost of the
// first attempt can overwrite what comes later. A Flush is another matter: see durable.go.

// handleLost deals with the commands that were given up. The caller holds drive.
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
		if over && 2*int(atomic.LoadUint32(&l.status.DeadCids)) < l.sqSize-1 {
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

// why says what happened to the first command in limbo.
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

// abortLost aborts what timed out, and says whether all of it has ended since.
func (l *lane) abortLost() (bool, error) {
	aborted := 0
	deadline := time.Now().Add(l.e.cfg.AbortWait)
	var w poll.Waiter
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
		// A late completion counts here and nowhere else: when as many have come as commands timed out, all are over.
		if atomic.LoadUint64(&l.counters.Timeouts) == atomic.LoadUint64(&l.counters.Late)+l.lateBase {
			return len(l.lost) == aborted, nil
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		if l.e.c.Step(l.qid) || n > 0 {
			w.Progress()
		} else {
			w.Idle()
		}
	}
}

// rebuild deletes the queue pair and creates it again.
func (l *lane) rebuild() error {
	l.recall()
	if l.outstanding() > 0 {
		return controller.RuntimeError{Err: fmt.Errorf("lane %d does not answer: its kernel does not run", l.index)}
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

// settle forgets what the old queue pair still owed: its late completions will never come.
func (l *lane) settle() {
	l.lateBase = atomic.LoadUint64(&l.counters.Timeouts) - atomic.LoadUint64(&l.counters.Late)
}

// resend queues the commands in limbo again, or ends those that had their chances. Those that merely shared the queue
// pair with the culprit have lost none.
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

func (l *lane) giveUp(s lostCmd) error {
	c := s.cmd()
	err := l.lastError(s)
	if c.Op == nvme.IOFlush {
		l.e.c.FlushFailed(err)
	}
	return err
}

func (l *lane) lastError(s lostCmd) error {
	c := s.cmd()
	if s.kind == kernels.EngineTimeout {
		return fmt.Errorf("nvme: %s: %w after %v, %d times", c, controller.ErrTimeout, l.e.cfg.Timeout, c.tries+1)
	}
	return fmt.Errorf("nvme: %s: the queue pair failed %d times", c, c.tries+1)
}
