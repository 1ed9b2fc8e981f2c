package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lane is the CPU's side of one queue pair. The caller that holds drive works on it; other callers submit their batches and wait.
type lane struct {
	// What a lone command touches (lone.go), beside one another.
	e      *Engine
	load   atomic.Int64 // sum of the weights of the batches inside Do
	listed atomic.Int32 // how many batches there are; changed with mu held
	qid    uint16
	drive  sync.Mutex // held by the one goroutine that works on the lane; see below
	broken error      // protected by drive: the queue pair needs a controller reset
	lones  loneCount  // lone commands, which no kernel counts

	index int
	self  gpu.Addr // of the kernels.Lane

	sqIOVA, cqIOVA nvme.IOVA
	rangeHost      []byte
	rangeIOVA      nvme.IOVA

	control  *kernels.Control
	status   *kernels.Status
	counters *kernels.Counters
	work     []kernels.WorkSlot
	results  []kernels.ResultSlot
	traces   []kernels.Trace // beside results; nil: the lane does not trace

	base LaneStats // counters of the runtimes before this one; protected by e.statsMu

	holdMu sync.Mutex
	holds  int // protected by holdMu: how many have taken the lane out of the launch that runs it (resident.go)

	mu      sync.Mutex
	batches []*batch // protected by mu: those not done, oldest first
	free    []*batch // protected by mu: to be used again

	// drive protects all that follows.
	own        *batch // of who drives: nobody waits for it
	created    bool
	workPos    uint32 // position of the next work item
	resultPos  uint32 // position of the next result
	slots      []slot // by tag
	freeTags   []uint16
	freePages  []int8    // of range lists
	retry      []slot    // to be posted again, before anything new
	lost       []lostCmd // answered without a completion: the controller may still use their memory
	retryAfter time.Time
	args       [3]uint64  // of the launch under way; here so that a launch allocates nothing
	bridge     *[2]uint32 // the bridge's words, SQ and CQ; nil without a bridge
	forwarded  [2]uint32  // what the bridge has forwarded of them
	kicks      uint       // of a resident kernel
	mine       bool       // it is held out of the resident launch for who drives it
	launch     uint64     // the resident launch in which the lane was last looked at
	heartbeat  uint64     // of a resident kernel: what it last was
	silence    nap.Wait   // for another one
	checkedAt  time.Time
	idle       uint        // polls without progress, in a row
	unanswered nap.Wait    // for a result, while commands are outstanding
	hung       atomic.Bool // its kernel does not answer: it is not waited for again
	lateBase   uint64      // timed out commands whose late completion can no longer come
	late       bool        // the late completions of others are waited for
	rebuilds   int         // rebuilds since the last command that ended well
}

// slot is a command under way: the i-th of its batch.
type slot struct {
	b *batch
	i int
}

func (s slot) cmd() *Command { return &s.b.cmds[s.i] }

// lostCmd is a command that the kernel gave up: it timed out, or its queue pair failed.
type lostCmd struct {
	slot
	cid  uint16
	kind kernels.Engine
}

// newLane is lane i of the engine, before place.
func newLane(e *Engine, g geometry, i int) *lane {
	l := &lane{e: e, index: i}
	l.slots = make([]slot, g.ring)
	l.retry, l.lost = make([]slot, 0, g.ring), make([]lostCmd, 0, g.ring)
	l.freeAll()
	return l
}

// freeAll marks every tag and every range list as free.
func (l *lane) freeAll() {
	l.freeTags, l.freePages = l.freeTags[:0], l.freePages[:0]
	for t := len(l.slots) - 1; t >= 0; t-- {
		l.freeTags = append(l.freeTags, uint16(t))
	}
	for p := range int8(rangePages) {
		l.freePages = append(l.freePages, p)
	}
}

// command is what the CPU asks of the lane. order asks, but for what is asked of it if that is not one of over; none is any.
func (l *lane) command() kernels.Command {
	return atomic.LoadUint32(&l.control.Command) & kernels.CommandMask
}

func (l *lane) order(c kernels.Command, over ...kernels.Command) { order(l.control, c, over...) }

func order(to *kernels.Control, c kernels.Command, over ...kernels.Command) {
	for {
		was := atomic.LoadUint32(&to.Command)
		if len(over) > 0 && !slices.Contains(over, was&kernels.CommandMask) {
			return
		}
		if atomic.CompareAndSwapUint32(&to.Command, was, was&^kernels.CommandMask|c) {
			return
		}
	}
}

// controls is where the lanes are asked. The caller holds statsMu, or sees to it that they do not move.
func (e *Engine) controls() []*kernels.Control {
	all := make([]*kernels.Control, len(e.lanes))
	for i, l := range e.lanes {
		all[i] = l.control
	}
	return all
}

// create resets the lane's kernel state and creates its queue pair.
func (l *lane) create() error {
	l.order(kernels.CommandRun)
	if err := l.e.drv.reset(l); err != nil {
		return controller.RuntimeError{Err: fmt.Errorf("lane %d: %w", l.index, err)}
	}
	l.resetDoorbells() // not before: until its end a kernel may ring for the queues that were
	if state := atomic.LoadUint32(&l.status.State); state != kernels.StateReady {
		return fmt.Errorf("lane %d: the kernels refuse it (state %d, failure %d): image and host disagree about its layout",
			l.index, state, atomic.LoadUint32(&l.status.Failed))
	}
	if err := l.e.c.CreateQueuePair(l.qid, l.sqIOVA, l.cqIOVA, l.e.cfg.Depth); err != nil {
		return err
	}
	l.created, l.broken = true, nil
	return nil
}

// delete removes the queue pair. When it returns nil the controller no longer touches any command's memory.
func (l *lane) delete() error {
	if !l.created {
		return nil
	}
	l.created = false
	return l.e.c.DeleteQueuePair(l.qid)
}

// outstanding is how many work items have no result yet.
func (l *lane) outstanding() int { return int(l.workPos - l.resultPos) }

// needsKernel says whether the kernel has something to do: work items, completions of commands that have timed out, or a command to act on.
func (l *lane) needsKernel() bool {
	return l.outstanding() > 0 || l.late || l.command() != kernels.CommandRun
}

// post puts one command into the work ring; false when there is no room.
func (l *lane) post(s slot) bool {
	c := s.cmd()
	if len(l.freeTags) == 0 || l.outstanding() == len(l.work) {
		return false
	}
	var ranges nvme.IOVA
	if c.Op == nvme.IODSM {
		if len(l.freePages) == 0 {
			return false
		}
		c.page = l.freePages[len(l.freePages)-1]
		l.freePages = l.freePages[:len(l.freePages)-1]
		nvme.EncodeRanges(l.rangeHost[int(c.page)*controller.PageSize:], c.Ranges)
		ranges = l.rangeIOVA + nvme.IOVA(c.page)*controller.PageSize
	}
	tag := l.freeTags[len(l.freeTags)-1]
	l.freeTags = l.freeTags[:len(l.freeTags)-1]
	l.slots[tag] = s
	var w kernels.Work
	c.fill(&w, ranges)
	w.Tag = tag
	w.Timeout = l.e.drv.ticks(l.e.timeout(c.Op))
	at := &l.work[l.workPos&uint32(len(l.work)-1)]
	l.workPos++
	at.Put(&w, l.workPos)
	return true
}

// freePage frees the page of a command's range list. The controller no longer reads it.
func (l *lane) freePage(c *Command) {
	if c.page >= 0 {
		l.freePages = append(l.freePages, c.page)
		c.page = -1
	}
}
