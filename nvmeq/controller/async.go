package controller

import (
	"context"
	"fmt"
	"log/slog"
	"math/bits"
	"time"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Asynchronous events (Base §5.2): up to four requests stay outstanding; each completion is decoded, logged, and its
// log page read, so that the controller reports the next event of that type.

const (
	maxEvents     = 4
	watchInterval = time.Second
)

// armEventsLocked sends requests until as many are outstanding as the controller allows, at most maxEvents.
func (c *Controller) armEventsLocked() {
	q := c.aq
	for q.broken == nil && !q.noEvents && bits.OnesCount8(q.events) < min(maxEvents, int(c.ident.AERL)+1) {
		n := bits.TrailingZeros8(^q.events) // the controller may hold a request for ever: its CID is not used for another meanwhile
		if q.broken = q.post(&nvme.SQE{Opcode: nvme.AdminAsyncEvent, CID: aerCID + uint16(n)}); q.broken == nil {
			q.events |= 1 << n
		}
	}
}

// event handles a completion if it is an event's.
func (q *adminQueue) event(cqe nvme.CQE) bool {
	if cqe.CID < aerCID || cqe.CID >= aerCID+maxEvents || q.events>>(cqe.CID-aerCID)&1 == 0 {
		return false
	}
	q.events &^= 1 << (cqe.CID - aerCID)
	switch {
	case cqe.Status.Is(nvme.StatusAERLimit):
		q.c.ident.AERL = uint8(max(bits.OnesCount8(q.events)-1, 0)) // it allows fewer than it reports
	case cqe.Status.Is(nvme.StatusSQDeleted), cqe.Status.Is(nvme.StatusAbortRequested):
	case !cqe.Status.OK():
		q.c.log.Warn("asynchronous event request failed", "device", q.c.t.Name(), "status", cqe.Status.String())
		q.noEvents = true
	default:
		q.seen = append(q.seen, nvme.AsyncEvent(cqe.DW0))
	}
	return true
}

// pollEvents reaps completions while no command is executed, and reports the events among them.
func (c *Controller) pollEvents() {
	c.admin.Lock()
	q := c.aq
	if q.broken == nil {
		c.Step(0)
		for range adminEntries { // bounds the loop: a controller may complete without end
			cqe, ok := q.reap()
			if !ok {
				break
			}
			if !q.event(cqe) {
				q.broken = fmt.Errorf("the controller completed admin command %#x, which was not outstanding", cqe.CID)
			}
		}
	}
	seen := q.seen
	q.seen = nil
	c.admin.Unlock()
	for _, e := range seen {
		c.reportEvent(e)
	}
	if len(seen) > 0 {
		c.admin.Lock()
		c.armEventsLocked()
		c.admin.Unlock()
	}
}

// reportEvent logs one event with details of its log page, and calls OnEvent.
func (c *Controller) reportEvent(e nvme.AsyncEvent) {
	args := []any{"device", c.t.Name(), "event", e.String()}
	level := slog.LevelWarn
	switch e.LID() {
	case nvme.LIDError:
		if list, err := c.ErrorLog(1); err == nil && len(list) > 0 {
			args = append(args, "detail", list[0].String())
		}
	case nvme.LIDSMART:
		if s, err := c.SMART(); err == nil {
			args = append(args, "warnings", s.Warning.Words())
		}
	default:
		if e.LID() != 0 {
			c.GetLogPage(e.LID(), 0xffffffff, make([]byte, PageSize)) // only so that the next event is reported
		}
	}
	if e.Type() == nvme.AsyncNotice {
		level = slog.LevelInfo
	}
	c.log.Log(context.Background(), level, "controller reports", args...)
	if c.cfg.OnEvent != nil {
		c.cfg.OnEvent(e)
	}
}

// watch polls for events, for a failed controller and for lost GPUs every watchInterval, from Open to Close.
func (c *Controller) watch() {
	defer close(c.watchDone)
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-c.closing:
			return
		case <-tick.C:
			c.pollEvents()
			c.checkStatus()
			c.checkRuntimes()
		}
	}
}
