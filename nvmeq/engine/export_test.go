package engine

import (
	"errors"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/nvmeq/controller"
)

// HoldLane takes a lane out of the resident launch, as asking for its counters does, until the function it returns is called.
func (e *Engine) HoldLane(lane int) (giveBack func(), err error) {
	return e.HoldLaneWithin(lane, launchTimeout)
}

// HoldLaneWithin is HoldLane with a limit of its own.
func (e *Engine) HoldLaneWithin(lane int, limit time.Duration) (giveBack func(), err error) {
	d, l := e.drv.(*residentDriver), e.lanes[lane]
	if err := d.take(l, new(nap.Wait), limit); err != nil {
		return nil, err
	}
	return func() { d.giveBack(l) }, nil
}

// BreakLane has a lane be one whose queue pair could not be rebuilt.
func (e *Engine) BreakLane(lane int) {
	l := e.lanes[lane]
	l.drive.Lock()
	l.broken = errors.New("as a test wants it")
	l.handOver()
}

// FailUnread carries out commands on lane 0. When the kernel has answered all of them, and nobody has read the answers yet, fail is called, and then a
// failover begins.
func (e *Engine) FailUnread(cmds []Command, fail func()) error {
	if err := e.prepare(cmds); err != nil {
		return err
	}
	l, weight := e.lanes[0], weigh(cmds)
	l.load.Add(weight)
	l.drive.Lock()
	gen := e.c.Generation()
	b := l.submit(cmds, false)
	l.fill()
	n := uint32(l.outstanding())
	if int(n) != len(cmds) {
		return errors.New("the lane does not take so many commands at once")
	}
	last := &l.results[(l.resultPos+n-1)&uint32(len(l.results)-1)]
	for atomic.LoadUint32((*uint32)(unsafe.Pointer(last))) != l.resultPos+n {
		if err := l.kick(); err != nil {
			return err
		}
		e.step(l.qid)
	}
	fail()
	l.drive.Unlock()
	e.c.Recover(gen, controller.RuntimeError{Err: errors.New("the lane fails as a test wants it")})
	l.wait(b)
	l.recycle(b)
	l.load.Add(-weight)
	return firstErr(cmds)
}

// InUse is how many tags and pages of range lists of a lane are not free.
func (e *Engine) InUse(lane int) (tags, pages int) {
	l := e.lanes[lane]
	l.drive.Lock()
	defer l.handOver()
	return len(l.slots) - len(l.freeTags), rangePages - len(l.freePages)
}

// HangsAt looks at an idle lane as at one that is to answer, at these times since now, and says at which of them it is taken for one that hangs: by its results, and by its heartbeat.
func (e *Engine) HangsAt(lane int, looks ...time.Duration) (byResults, byHeartbeat time.Duration) {
	l, begin := e.lanes[lane], time.Now()
	l.drive.Lock()
	defer l.handOver()
	for _, at := range looks {
		if l.checkHung(begin.Add(at)); l.broken != nil && byResults == 0 {
			byResults = at
		}
		if silent := e.drv.(*residentDriver).silent(l, begin.Add(at)); silent > e.cfg.HangTimeout && byHeartbeat == 0 {
			byHeartbeat = at
		}
	}
	l.broken, l.unanswered, l.silence = nil, nap.Wait{}, nap.Wait{}
	return byResults, byHeartbeat
}
