package engine

import (
	"fmt"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// drain takes all results from the ring, and returns how many.
func (l *lane) drain() int {
	n := 0
	var r kernels.Result
	for {
		if !l.results[l.resultPos&uint32(len(l.results)-1)].Take(&r, l.resultPos+1) {
			return n
		}
		t := l.traceOf(&r)
		l.resultPos++
		n++
		if int(r.Tag) >= len(l.slots) || l.slots[r.Tag].b == nil {
			// The kernels are part of LaneFS: this is an error in them, not in the controller.
			panic(fmt.Sprintf("nvme: lane %d answered tag %d, which is not in use", l.index, r.Tag))
		}
		s := l.slots[r.Tag]
		l.slots[r.Tag] = slot{}
		l.freeTags = append(l.freeTags, r.Tag)
		if c := s.cmd(); c.Steps != nil {
			*c.Steps = l.e.clock.steps(t)
		}
		l.ended(s, &r)
	}
}

// ended acts on one result: the command ends, is sent again, or is lost.
func (l *lane) ended(s slot, r *kernels.Result) {
	c := s.cmd()
	c.Latency, c.QID = l.e.drv.duration(r.Latency), l.qid
	switch r.Engine {
	case kernels.EngineOK:
		l.freePage(c)
		c.Status, c.DW0 = nvme.Status(r.Status), r.Dw0
		switch {
		case c.Status.OK():
			l.rebuilds = 0
			l.finish(s, l.e.checkDurable(c))
		case c.Op == nvme.IOFlush:
			l.e.c.FlushFailed(c.statusErr())
			l.finish(s, c.statusErr())
		case worthRetry(c.Status) && !c.makesDurable() && int(c.tries) < l.e.cfg.Retries:
			c.tries++
			l.delayRetry(c.Status)
			l.retry = append(l.retry, s)
		default:
			l.finish(s, c.statusErr())
		}
	case kernels.EngineBadWork:
		l.freePage(c)
		l.finish(s, fmt.Errorf("nvme: %s: the lane cannot address %d bytes at IOVA %#x", c, c.Len, uint64(c.Data)))
	default:
		// The controller may still access the command's memory, so the caller goes on waiting.
		l.lost = append(l.lost, lostCmd{s, r.Cid, r.Engine})
	}
}

// delayRetry honours the retry delay that a status asks for (Base §3.3.3.2.1, CRD).
func (l *lane) delayRetry(st nvme.Status) {
	if d := l.e.c.Identify().RetryDelay(st.CRD()); d > 0 {
		l.retryAfter = time.Now().Add(d)
	}
}

// finish ends a command; the last of its batch ends the batch.
func (l *lane) finish(s slot, err error) {
	s.cmd().Err = err
	if s.b.left--; s.b.left == 0 {
		l.end(s.b)
	}
}
