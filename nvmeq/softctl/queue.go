package softctl

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// subQueue is a submission queue and what the controller holds of its commands.
type subQueue struct {
	mu    sync.Mutex // everything below; the admin queue's is Controller.mu instead
	id    uint16
	size  uint32
	cq    *compQueue
	stats *queueStats
	bell  bell
	ring  window
	head  uint32 // next entry to fetch
	tail  uint32 // the host's, as last accepted
	dead  bool   // deleted or reset: a step that still has a pointer does nothing

	held []heldCommand // fetched and not yet carried out: latency, disorder
	rng  *rand.Rand

	flushes []flushing    // under way, in order of arrival
	flushed chan struct{} // one has ended

	deferred int         // commands that a batch will complete
	batch    *batch      // of who calls Step or StepHere
	here     atomic.Bool // threads leave it to callers of StepHere

	direct *direct // nil: every command is carried out at once

	loneIn found

	data  vector
	block []byte // scratch for Compare and Verify
	entry [sqeSize]byte
	cmd   command // being carried out; here so that it is not allocated for each
	page  int64   // CC.MPS
}

// heldCommand waits for its time.
type heldCommand struct {
	command
	due time.Time
}

// compQueue is a completion queue. Several submission queues may share one.
type compQueue struct {
	mu      sync.Mutex // everything below but users
	id      uint16
	size    uint32
	stats   *queueStats
	bell    bell
	ring    window
	head    uint32 // the host's, as last accepted
	tail    uint32 // next entry to write
	phase   bool
	pending []completion // no room yet
	users   int          // submission queues; Controller.mu
}

func (c *Controller) newSubQueue(id uint16, size uint32, base uint64, cq *compQueue) *subQueue {
	q := &subQueue{id: id, size: size, cq: cq, flushed: make(chan struct{}, 1), stats: c.statsOf(id), page: c.cc.pageSize(),
		ring: window{base: base, size: uint64(size) * sqeSize}}
	q.data.mover = c.opt.Mover
	if id != 0 {
		q.batch = newBatch(c.opt.Mover)
	}
	if id != 0 {
		q.direct = c.newDirect(size)
	}
	q.bell = c.newBell(c.bar.sqDoorbell(id))
	if c.opt.OutOfOrder {
		q.rng = rand.New(rand.NewPCG(uint64(c.opt.Seed), uint64(id)))
	}
	cq.users++
	return q
}

func (c *Controller) newCompQueue(id uint16, size uint32, base uint64) *compQueue {
	q := &compQueue{id: id, size: size, stats: c.statsOf(id), phase: true,
		ring: window{base: base, size: uint64(size) * cqeSize}}
	q.bell = c.newBell(c.bar.cqDoorbell(id))
	return q
}

// dropQueues forgets every queue, waiting for steps that are under way.
func (c *Controller) dropQueues() {
	for i := range c.sq {
		q := c.sq[i].Swap(nil)
		if q == nil {
			continue
		}
		q.mu.Lock()
		q.dead, q.held, q.flushes = true, nil, nil
		q.endDirect()
		q.data.unstage()
		q.batch.close()
		q.mu.Unlock()
	}
	clear(c.cq)
}

// fetch copies the entry at head, once, and decodes it into q.cmd: the host may change its memory at any time.
func (c *Controller) fetch(q *subQueue) bool {
	at := uint64(q.head) * sqeSize
	if b := q.ring.bytes(c.dma); b != nil {
		copy(q.entry[:], b[at:])
	} else if !c.dma.read(q.entry[:], q.ring.base+at) {
		return false
	}
	if q.head++; q.head == q.size {
		q.head = 0
	}
	q.cmd = decodeCommand(&q.entry)
	return true
}

// readTail takes the host's tail. It loads the doorbell before any entry is read: an atomic load, so that entries
// stored before the doorbell are seen.
func (c *Controller) readTail(q *subQueue) {
	v, fresh := q.bell.read()
	if !fresh || v == q.tail {
		return
	}
	free := q.size - 1 - q.distance(q.head, q.tail)
	if v >= q.size || q.distance(q.tail, v) > free {
		q.bell.refuse(c, v, q.id, "submission")
		return
	}
	q.stats.sqDoorbells.Add(1)
	q.tail = v
}

func (q *subQueue) distance(from, to uint32) uint32 { return (to + q.size - from) % q.size }

// used is how many entries wait for the host.
func (q *compQueue) used() uint32 { return (q.tail + q.size - q.head) % q.size }

// readHead takes the host's head.
func (q *compQueue) readHead(c *Controller) {
	v, fresh := q.bell.read()
	if !fresh || v == q.head {
		return
	}
	if v >= q.size || (v+q.size-q.head)%q.size > q.used() {
		q.bell.refuse(c, v, q.id, "completion")
		return
	}
	q.stats.cqDoorbells.Add(1)
	q.head = v
}

// room says whether one more entry can be written, besides more that will be.
func (q *compQueue) room(c *Controller, more int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pending) > 0 {
		return false
	}
	q.readHead(c)
	return q.used()+uint32(more) < q.size-1
}

// drain writes what waited for room.
func (q *compQueue) drain(c *Controller) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.readHead(c)
	return q.drainLocked(c)
}

func (q *compQueue) drainLocked(c *Controller) bool {
	n := 0
	for n < len(q.pending) && q.used() < q.size-1 {
		q.write(c, &q.pending[n])
		n++
	}
	q.pending = q.pending[:copy(q.pending, q.pending[n:])]
	return n > 0
}

// post completes a command, now or when the host has made room: an entry that it has not consumed is never overwritten.
func (q *compQueue) post(c *Controller, e completion) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = append(q.pending, e)
	q.drainLocked(c)
}

// write writes the entry at tail. The last dword has the phase: its store is the release that orders it after the other
// dwords and after the command's data.
func (q *compQueue) write(c *Controller, e *completion) {
	first, third, last := e.words(q.phase)
	at := uint64(q.tail) * cqeSize
	q.stats.completions.Add(1) // first: a host that has seen the entry finds it counted
	if b := q.ring.bytes(c.dma); b != nil {
		b = b[at : at+cqeSize]
		binary.LittleEndian.PutUint64(b, first)
		binary.LittleEndian.PutUint32(b[8:], third)
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[12])), last)
	} else {
		var b [cqeSize]byte
		binary.LittleEndian.PutUint64(b[:], first)
		binary.LittleEndian.PutUint32(b[8:], third)
		binary.LittleEndian.PutUint32(b[12:], last)
		// The phase is in the last dword: it follows when the others have arrived.
		if !c.dma.write(q.ring.base+at, b[:12]) || !c.dma.write(q.ring.base+at+12, b[12:]) {
			q.stats.completions.Add(^uint64(0))
			c.fail("completion queue is not mapped", "queue", q.id, "iova", q.ring.base)
			return
		}
	}
	if q.tail++; q.tail == q.size {
		q.tail, q.phase = 0, !q.phase
	}
}
