package engine

import (
	"errors"
	"fmt"

	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// The engine's part of a failover, whose steps are in controller/runtime.go: the lanes move to memory and kernels of another runtime.

func (e pairs) Abandon() {
	for _, l := range e.lanes {
		l.created = false
		l.hung.Store(true)
		l.order(kernels.CommandFail)
	}
}

func (e pairs) Ended() bool {
	done, err := e.drv.done()
	return done || err != nil && !errors.Is(err, errCallHangs) // that call may begin a kernel yet
}

// Move keeps the commands that were under way, to be sent again.
func (e pairs) Move(ended bool) error {
	qids := make([]uint16, len(e.lanes))
	for i, l := range e.lanes {
		qids[i] = l.qid
	}
	if !ended && (e.rt == nil || e.peer) { // kernels on the CPU have ended in any case
		fresh := e.c.AllocQIDs(len(qids))
		if len(fresh) < len(qids) {
			return fmt.Errorf("%d queue pairs are free and %d are needed: the old ones' doorbells may still be rung by a kernel that hangs",
				len(fresh), len(qids))
		}
		qids = fresh
	}
	var w resources
	var g geometry
	err := w.load(e.Engine)
	if err == nil {
		g, err = w.build(e.Engine, len(qids))
	}
	if err != nil {
		return errors.Join(err, w.close(e.c))
	}
	old := e.resources
	e.statsMu.Lock()
	for i, l := range e.lanes {
		l.reclaim()
		l.base = l.stats()
		l.lones.forget() // which base has
		l.place(&w, g, qids[i])
	}
	e.resources = w
	e.statsMu.Unlock()
	// Nobody else has what was: it ends whether the lanes can go on or not. What cannot end is left, which harms no lane.
	closeOld := func() error { return old.leave(e.c) }
	if e.rt != nil && !e.peer { // it has not failed: only GPUs have
		closeOld = func() error { return old.close(e.c) }
	}
	if err := closeOld(); err != nil {
		e.c.Log().Warn("memory of the lanes that have moved is left", "device", e.c.Name(), "why", err.Error())
	}
	if err := w.describe(e.Engine); err != nil {
		return err
	}
	for _, l := range e.lanes {
		l.hung.Store(false)
		if err := l.create(); err != nil {
			return err
		}
	}
	return nil
}

// ErrReadOnly is wrapped by the errors of commands that would write and are refused.
var ErrReadOnly = errors.New("writes are refused")

// refuses is why a valid command is not sent: after a failover with Config.SpareReads, commands that write.
func (e *Engine) refuses(cmd *Command) error {
	f := e.c.Failover()
	if f == nil || !f.ReadOnly {
		return nil
	}
	switch cmd.Op {
	case nvme.IORead, nvme.IOCompare, nvme.IOVerify, nvme.IOFlush:
		return nil
	}
	return fmt.Errorf("%s: %w since the lanes failed on %s: %s", cmd, ErrReadOnly, f.From, f.Why)
}

// reclaim takes the lane's work items back: results that are there count, and all other commands are lost.
func (l *lane) reclaim() {
	l.drain()
	for tag, s := range l.slots {
		if s.b != nil {
			l.slots[tag] = slot{}
			l.lost = append(l.lost, lostCmd{s, 0, kernels.EngineQueueDead})
		}
	}
	for _, s := range l.lost {
		s.cmd().page = -1
	}
	l.freeAll()
	l.lateBase, l.kicks, l.unanswered = 0, 0, nap.Wait{}
}

// refuseWrites ends the commands that refuses does not allow, among those that wait to be sent or to be sent again.
func (l *lane) refuseWrites() {
	if f := l.e.c.Failover(); f == nil || !f.ReadOnly {
		return
	}
	again := l.lost[:0]
	var ended []slot
	for _, s := range l.lost {
		if l.e.refuses(s.cmd()) == nil {
			again = append(again, s)
		} else {
			ended = append(ended, s.slot)
		}
	}
	l.lost = again
	retry := l.retry[:0]
	for _, s := range l.retry {
		if l.e.refuses(s.cmd()) == nil {
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
			if l.e.refuses(s.cmd()) == nil {
				l.retry = append(l.retry, s)
			} else {
				ended = append(ended, s)
			}
		}
	}
	l.mu.Unlock()
	for _, s := range ended {
		l.finish(s, fmt.Errorf("nvme: %w", l.e.refuses(s.cmd())))
	}
}
