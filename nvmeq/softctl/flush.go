package softctl

import (
	"slices"
	"time"

	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// flushing is a flush that was fetched and has not ended. Each queue has one goroutine at most, which carries its flushes
// out one after the other, without the queue's lock: the disk below may take long, and reads go on meanwhile. Where there is no disk the
// caller of Step does it at once: to wake a goroutine takes longer, the caller's timer for it wakes a thread, too.
type flushing struct {
	command
	all []*namespace
}

// flushLater begins a flush. With the volatile cache off everything is durable already, as long as nothing has failed.
func (c *Controller) flushLater(q *subQueue, cmd *command, all ...*namespace) Status {
	if c.opt.ReadOnly || !c.cached.Load() && c.Failed() == nil {
		return success
	}
	if len(q.flushes) == 0 && !slices.ContainsFunc(all, func(ns *namespace) bool { return !ns.medium.FlushesAtOnce() }) {
		return c.flush(all)
	}
	q.flushes = append(q.flushes, flushing{*cmd, all})
	if len(q.flushes) == 1 {
		c.flushers.Go(func() { c.runFlushes(q) })
	}
	return noCompletion
}

// runFlushes ends when the queue has no flush any more, or is no queue any more.
func (c *Controller) runFlushes(q *subQueue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.flushes) > 0 {
		f := q.flushes[0]
		q.mu.Unlock()
		st := c.flush(f.all)
		q.mu.Lock()
		if q.dead || c.now() != stateReady {
			q.flushes = nil
			return
		}
		q.flushes = slices.Delete(q.flushes, 0, 1)
		c.finish(q, &f.command, st, 0)
		select {
		case q.flushed <- struct{}{}:
		default:
		}
	}
}

// flushWait is how long a caller of Step may be kept from what else the host may want.
const flushWait = time.Millisecond

// awaitFlush gives the queue's goroutine the caller's place, so that the host hears of the end of a flush at once, without
// polling. It says whether one has ended.
func (q *subQueue) awaitFlush() bool {
	q.mu.Lock()
	wait := len(q.flushes) > 0 && len(q.held) == 0
	q.mu.Unlock()
	if !wait {
		return false
	}
	t := time.NewTimer(flushWait)
	defer t.Stop()
	select {
	case <-q.flushed:
		return true
	case <-t.C:
		return false
	}
}

// flush makes namespaces durable.
func (c *Controller) flush(all []*namespace) Status {
	var last media.Medium
	for _, ns := range all {
		if ns.medium == last { // parts of one image
			continue
		}
		last = ns.medium
		if err := ns.medium.Flush(); err != nil {
			return c.mediaStatus("flush", ns, ns.base, WriteFault, err)
		}
	}
	return success
}
