package engine

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// lane is the CPU's side of one queue pair. Whoever holds drive works it; others leave their batches and wait.
type lane struct {
	e      *Engine
	index  int
	qid    uint16
	stream gpu.Stream
	self   gpu.Addr // of the kernels.Lane

	sqIOVA, cqIOVA nvme.IOVA
	sqSize, cqSize int
	rangeHost      []byte
	rangeIOVA      nvme.IOVA

	control  *kernels.Control
	status   *kernels.Status
	counters *kernels.Counters
	work     []kernels.WorkSlot
	results  []kernels.ResultSlot

	load atomic.Int64 // of the callers inside Do, each with its weight
	base LaneStats    // what it counted before it moved; protected by e.statsMu

	mu      sync.Mutex
	batches []*batch // protected by mu: those not done, oldest first
	spare   []*batch // protected by mu: to be used again

	// drive is held by the one goroutine that works the lane; it protects all that follows.
	drive      sync.Mutex
	created    bool
	workPos    uint32 // position of the next work item
	resultPos  uint32 // position of the next result
	slots      []slot // by tag
	freeTags   []uint16
	freePages  []int8 // of range lists
	retry      []slot // to be posted again, before anything new
	limbo      []lost // answered without a completion, or waiting for the ladder
	retryAfter time.Time
	args       [4]uint64  // of the launch under way; here so that a launch allocates nothing
	bells      *[2]uint32 // the bridge's words, SQ and CQ; nil without a bridge
	rung       [2]uint32  // what the bridge has forwarded of them
	kicks      uint       // of a resident kernel
	beat       uint64     // what its heartbeat last was, and when it changed
	beatAt     time.Time
	lookedAt   time.Time
	idle       uint        // turns without progress, in a row
	heard      time.Time   // when something last came, while commands are outstanding
	broken     error       // the queue pair needs a controller reset
	deaf       atomic.Bool // its kernel does not answer and is not waited for again
	lateBase   uint64      // timeouts whose late completion can no longer come
	streak     int         // rebuilds since the last command that ended well
}

// slot is a command on its way: the i-th of its batch.
type slot struct {
	b *batch
	i int
}

func (s slot) cmd() *Command { return &s.b.cmds[s.i] }

// lost is a command that the lane gave up.
type lost struct {
	slot
	cid  uint16
	kind kernels.Engine
}

// geometry is the sizes in bytes of one lane's parts.
type geometry struct {
	page, sq, cq, prp, ranges int64
	own, cids                 int64 // own: CIDs; the lane structs of all lanes come first in the memory
	shared, work, results     int64 // shared: control, status, counters, then work, then results
	ring, count               int
	stride                    uint32
}

const sharedHead = kernels.ControlSize + kernels.StatusSize + kernels.CountersSize

func newGeometry(cfg Config, page int64) geometry {
	g := geometry{page: page, count: cfg.Depth - 1, stride: kernels.PRPStride(cfg.MaxTransfer, page)}
	// Twice as many slots as commands in flight: the lane finds work waiting when completions free its CIDs.
	g.ring = 1 << bits.Len(uint(2*cfg.Depth-1))
	g.sq, g.cq = controller.RoundUp(int64(cfg.Depth)*nvme.SQESize, page), controller.RoundUp(int64(cfg.Depth)*nvme.CQESize, page)
	g.prp = controller.RoundUp(int64(g.count)*int64(g.stride), page)
	g.ranges = controller.RoundUp(rangePages*controller.PageSize, page)
	g.cids = int64(g.count) * kernels.CIDSize
	g.own = controller.RoundUp(kernels.LaneSize+g.cids, controller.PageSize)
	g.work, g.results = int64(g.ring)*kernels.WorkSlotSize, int64(g.ring)*kernels.ResultSlotSize
	g.shared = controller.RoundUp(sharedHead+g.work+g.results, controller.PageSize)
	return g
}

// silent has a bit for each command whose completion says nothing in DW0 and DW1 (NVM §3.2; Base §7.1 for Flush).
const silent = 1<<nvme.IOFlush | 1<<nvme.IOWrite | 1<<nvme.IORead | 1<<nvme.IOCompare | 1<<nvme.IOWriteZeroes | 1<<nvme.IODSM | 1<<nvme.IOVerify | 1<<nvme.IOWriteUncorr

// newLane is lane i of the engine, before it has a place.
func newLane(e *Engine, g geometry, i int) *lane {
	l := &lane{e: e, index: i, sqSize: e.cfg.Depth, cqSize: e.cfg.Depth}
	l.slots = make([]slot, g.ring)
	l.retry, l.limbo = make([]slot, 0, g.ring), make([]lost, 0, g.ring)
	l.freeAll()
	return l
}

// freeAll says that no tag and no range list is in use.
func (l *lane) freeAll() {
	l.freeTags, l.freePages = l.freeTags[:0], l.freePages[:0]
	for t := len(l.slots) - 1; t >= 0; t-- {
		l.freeTags = append(l.freeTags, uint16(t))
	}
	for p := range int8(rangePages) {
		l.freePages = append(l.freePages, p)
	}
}

// place lays the lane out in the works' memory, with empty rings, and describes it to the kernels.
func (l *lane) place(w *works, g geometry, qid uint16) error {
	n := int64(l.index)
	h := w.shared.Host()[n*g.shared : (n+1)*g.shared]
	at := w.shared.Addr() + gpu.Addr(n*g.shared)
	l.qid, l.self = qid, w.own.Addr()+gpu.Addr(n*g.own)
	l.sqIOVA, l.cqIOVA = w.sq.IOVA+nvme.IOVA(n*g.sq), w.cq.IOVA+nvme.IOVA(n*g.cq)
	l.rangeHost, l.rangeIOVA = w.ranges.Host[n*g.ranges:(n+1)*g.ranges], w.ranges.IOVA+nvme.IOVA(n*g.ranges)
	l.control = (*kernels.Control)(unsafe.Pointer(&h[0]))
	l.status = (*kernels.Status)(unsafe.Pointer(&h[kernels.ControlSize]))
	l.counters = (*kernels.Counters)(unsafe.Pointer(&h[kernels.ControlSize+kernels.StatusSize]))
	l.work = unsafe.Slice((*kernels.WorkSlot)(unsafe.Pointer(&h[sharedHead])), g.ring)
	l.results = unsafe.Slice((*kernels.ResultSlot)(unsafe.Pointer(&h[sharedHead+g.work])), g.ring)
	l.workPos, l.resultPos = 0, 0
	c := l.e.c
	stream, err := c.Runtime().NewStream()
	if err != nil {
		return err
	}
	sqBell, cqBell := l.placeBells(w)
	desc := kernels.Lane{Magic: kernels.Magic, Version: kernels.Version, Size: kernels.LaneSize, Sqid: qid,
		Sq: uint64(w.sq.Addr) + uint64(n*g.sq), Cq: uint64(w.cq.Addr) + uint64(n*g.cq),
		SqDoorbell: sqBell, CqDoorbell: cqBell,
		Work: uint64(at) + sharedHead, Results: uint64(at) + sharedHead + uint64(g.work),
		Cids: uint64(l.self) + kernels.LaneSize,
		Prp:  uint64(w.prp.Addr) + uint64(n*g.prp), PrpIova: uint64(w.prp.IOVA) + uint64(n*g.prp),
		Control: uint64(at), Status: uint64(at) + kernels.ControlSize, Counters: uint64(at) + kernels.ControlSize + kernels.StatusSize,
		SqSize: uint32(l.sqSize), CqSize: uint32(l.cqSize), RingSize: uint32(g.ring), CidCount: uint32(g.count),
		PrpStride: g.stride, PageSize: uint32(g.page), Silent: silent,
	}
	if err := l.describe(w, stream, &desc, n*g.own, g.own); err != nil {
		stream.Close()
		return err
	}
	l.stream = stream
	return nil
}

// describe puts the lane struct where the kernels find it, and zeroes the rest of the lane's own memory.
func (l *lane) describe(w *works, s gpu.Stream, desc *kernels.Lane, off, size int64) error {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(desc)), kernels.LaneSize)
	if h := w.own.Host(); h != nil {
		clear(h[off : off+size])
		copy(h[off:], raw)
		return nil
	}
	if err := zero(s, l.self, size); err != nil {
		return err
	}
	stage, err := l.e.c.Runtime().Alloc(gpu.HostMapped, controller.PageSize)
	if err != nil {
		return err
	}
	defer stage.Close()
	copy(stage.Host(), raw)
	if err := s.Copy(l.self, stage.Addr(), kernels.LaneSize); err != nil {
		return err
	}
	return s.Wait(copyTimeout)
}

// create makes the lane ready and creates its queue pair.
func (l *lane) create() error {
	atomic.StoreUint32(&l.control.Command, kernels.CommandRun)
	l.resetBells()
	if err := l.e.drv.reset(l); err != nil {
		return controller.RuntimeError{Err: fmt.Errorf("lane %d: %w", l.index, err)}
	}
	if state := atomic.LoadUint32(&l.status.State); state != kernels.StateReady {
		return fmt.Errorf("lane %d: the kernels refuse it (state %d, failure %d): image and host disagree about its layout",
			l.index, state, atomic.LoadUint32(&l.status.Failed))
	}
	if err := l.e.c.CreateQueuePair(l.qid, l.sqIOVA, l.sqSize, l.cqIOVA, l.cqSize); err != nil {
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

// post puts one command into the work ring; it says no when there is no room.
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

// freePage gives a range list's page back. The controller has finished with it.
func (l *lane) freePage(c *Command) {
	if c.page >= 0 {
		l.freePages = append(l.freePages, c.page)
		c.page = -1
	}
}

// drain takes every result that is there and returns how many.
func (l *lane) drain() int {
	n := 0
	var r kernels.Result
	for {
		if !l.results[l.resultPos&uint32(len(l.results)-1)].Take(&r, l.resultPos+1) {
			return n
		}
		l.resultPos++
		n++
		if int(r.Tag) >= len(l.slots) || l.slots[r.Tag].b == nil {
			// The lane is our own code: it cannot answer what was not asked.
			panic(fmt.Sprintf("nvmeq: lane %d answered tag %d, which is not in use", l.index, r.Tag))
		}
		s := l.slots[r.Tag]
		l.slots[r.Tag] = slot{}
		l.freeTags = append(l.freeTags, r.Tag)
		l.ended(s, &r)
	}
}

// ended deals with one result.
func (l *lane) ended(s slot, r *kernels.Result) {
	c := s.cmd()
	c.Latency = l.e.drv.duration(r.Latency)
	switch r.Engine {
	case kernels.EngineOK:
		l.freePage(c)
		c.Status, c.DW0 = nvme.Status(r.Status), r.Dw0
		switch {
		case c.Status.OK():
			l.streak = 0
			l.finish(s, l.e.believe(c))
		case c.Op == nvme.IOFlush:
			l.e.c.FlushFailed(c.statusErr())
			l.finish(s, c.statusErr())
		case worthRetry(c.Status) && !c.promises() && int(c.tries) < l.e.cfg.Retries:
			c.tries++
			l.delayRetry(c.Status)
			l.retry = append(l.retry, s)
		default:
			l.finish(s, c.statusErr())
		}
	case kernels.EngineBadWork:
		l.freePage(c)
		l.finish(s, fmt.Errorf("nvmeq: %s: the lane cannot address %d bytes at IOVA %#x", c, c.Len, uint64(c.Data)))
	default:
		// The controller may still use the command's memory: its caller hears nothing before that is over.
		l.limbo = append(l.limbo, lost{s, r.Cid, r.Engine})
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
		l.pop(s.b)
	}
}

// copyTimeout bounds the small copies by which the CPU sets up memory it cannot reach.
const copyTimeout = 5 * time.Second

// zero has the device clear n bytes of its memory at addr.
func zero(s gpu.Stream, addr gpu.Addr, n int64) error {
	if err := s.Fill(addr, 0, n); err != nil {
		return err
	}
	return s.Wait(copyTimeout)
}
