package nvmeq

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
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

// climb deals with the commands in limbo. The caller holds drive.
func (l *lane) climb() {
	onlyTimeouts := true
	for _, s := range l.limbo {
		onlyTimeouts = onlyTimeouts && s.kind == kernels.EngineTimeout
	}
	log := l.e.c.log.With("device", l.e.c.t.Name(), "queue", l.qid)
	first := l.limbo[0]
	if csts := l.e.c.csts(); csts.Gone() || csts.CFS() {
		l.broken = fmt.Errorf("%s not completed: %v", first.cmd(), csts)
		return
	}
	if onlyTimeouts {
		log.Warn("command timed out, aborting it", "command", first.cmd().String(), "after", l.e.cfg.Timeout, "others", len(l.limbo)-1)
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
	l.streak++
	if l.streak > 3 {
		l.broken = fmt.Errorf("queue pair %d was rebuilt %d times and still completes nothing", l.qid, l.streak-1)
		return
	}
	log.Warn("rebuilding the queue pair", "why", l.why(), "command", first.cmd().String())
	if err := l.rebuild(); err != nil {
		l.broken = err
	}
}

// why says what happened to the first command in limbo.
func (l *lane) why() string {
	switch l.limbo[0].kind {
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
		for ; aborted < len(l.limbo); aborted++ {
			if l.limbo[aborted].kind != kernels.EngineTimeout {
				return false, nil // the lane failed meanwhile
			}
			if _, err := l.e.c.abort(l.qid, l.limbo[aborted].cid); err != nil && !refused(err) {
				return false, err
			}
		}
		if err := l.kick(); err != nil {
			return false, err
		}
		n := l.drain()
		if stale || n > 0 {
			if err := l.e.drv.sync(l); err != nil {
				return false, laneError{fmt.Errorf("lane %d: %w", l.index, err)}
			}
			stale = false
			if n += l.drain(); len(l.limbo) > aborted {
				continue
			}
		}
		// A late completion counts here and nowhere else: when as many have come as commands timed out, all are over.
		if atomic.LoadUint64(&l.counters.Timeouts) == atomic.LoadUint64(&l.counters.Late)+l.lateBase {
			return len(l.limbo) == aborted, nil
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		if l.e.c.step(l.qid) || n > 0 {
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
		return laneError{fmt.Errorf("lane %d does not answer: its kernel does not run", l.index)}
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
	for _, s := range l.limbo {
		c := s.cmd()
		l.freePage(c)
		if err := l.e.c.unseen(c); err != nil {
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
	l.limbo = l.limbo[:0]
}

func (l *lane) giveUp(s lost) error {
	c := s.cmd()
	err := l.lastWord(s)
	if c.Op == IOFlush {
		l.e.c.flushFailed(err)
	}
	return err
}

func (l *lane) lastWord(s lost) error {
	c := s.cmd()
	if s.kind == kernels.EngineTimeout {
		return fmt.Errorf("nvme: %s: %w after %v, %d times", c, ErrTimeout, l.e.cfg.Timeout, c.tries+1)
	}
	return fmt.Errorf("nvme: %s: the queue pair failed %d times", c, c.tries+1)
}

// maxResets is how many resets in a row, without a completed command between them, a controller is granted.
const maxResets = 3

// generation counts resets.
func (c *Controller) generation() uint32 { return c.gen.Load() }

// recover resets the controller, unless that has happened since gen was read. Nobody calls it with drive held.
func (c *Controller) recover(gen uint32, why error) {
	c.ladder.Lock()
	defer c.ladder.Unlock()
	c.recoverLocked(gen, why)
}

func (c *Controller) recoverLocked(gen uint32, why error) {
	if c.gen.Load() != gen || c.Err() != nil {
		return
	}
	c.paused.Store(true) // drivers leave their lanes at their next turn
	c.mu.Lock()
	engines := append([]*Engine(nil), c.engines...)
	c.mu.Unlock()
	var lanes []*lane
	for _, e := range engines {
		lanes = append(lanes, e.lanes...)
	}
	completed := false
	for _, l := range lanes {
		l.drive.Lock()
		completed = completed || l.streak == 0
	}
	if completed {
		c.resets = 0
	}
	c.resets++
	if c.resets > maxResets {
		c.kill(fmt.Errorf("%d resets did not help: %w", maxResets, why))
		c.t.Reset() // it must not write to memory that is no longer its own
	} else {
		err, failed := why, laneError{}
		if !errors.As(why, &failed) {
			c.log.Error("resetting the controller", "device", c.t.Name(), "why", why.Error())
			err = c.restart(lanes)
		}
		if errors.As(err, &failed) {
			err = c.moveLanes(engines, lanes, failed)
		}
		if errors.As(err, &failed) {
			c.kill(err)
			c.t.Reset()
		} else if err != nil {
			c.kill(fmt.Errorf("reset failed: %w; it was reset because: %w", err, why))
			c.t.Reset()
		} else {
			c.log.Warn("controller reset", "device", c.t.Name())
		}
	}
	dead := c.Err()
	for _, l := range lanes {
		l.streak = 1
		l.heard = time.Time{}
		if dead != nil {
			l.failAll(dead)
		} else {
			l.settle()
			l.refuseWrites()
			l.resend()
		}
	}
	c.gen.Add(1)
	c.paused.Store(false)
	for _, l := range lanes {
		l.pass()
	}
}

// awaitReset returns when the reset under way is over.
func (c *Controller) awaitReset() {
	c.ladder.Lock()
	defer c.ladder.Unlock()
}

// restart brings the controller from whatever state back to where it was. The caller holds ladder and every drive.
func (c *Controller) restart(lanes []*lane) error {
	for _, l := range lanes {
		l.created = false
		if l.recall(); l.outstanding() > 0 {
			return laneError{fmt.Errorf("lane %d does not answer: its kernel does not run", l.index)}
		}
	}
	if err := c.stop(); err != nil {
		return err
	}
	if err := c.bringUp(); err != nil {
		return err
	}
	for _, l := range lanes {
		if err := l.create(); err != nil {
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
	b, err := c.identifyCmd(CNSController, 0, 0)
	if err != nil {
		return err
	}
	now, err := DecodeIdentifyController(b)
	if err != nil {
		return err
	}
	if now.SN != c.ident.SN || now.MN != c.ident.MN {
		return fmt.Errorf("after the reset the controller is %q (%q), before it was %q (%q)", now.MN, now.SN, c.ident.MN, c.ident.SN)
	}
	for _, ns := range c.spaces {
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
	c.ladder.Lock()
	defer c.ladder.Unlock()
	c.resets = 0 // this one is not for a failure
	c.recoverLocked(c.generation(), errors.New("it was asked for"))
	return c.Err()
}
