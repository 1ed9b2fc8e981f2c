package controller

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// The admin queue: driven by the CPU, one command at a time, beside the Asynchronous Event Requests that stay
// outstanding. Its memory is three pages: submission queue, completion queue, data.

const (
	adminEntries = 64               // of both queues; 64 × SQESize is one page
	adminTimeout = 10 * time.Second // of one command, unless configured
	aerCID       = 0xff00           // Asynchronous Event Requests use CIDs from here, other commands those below
	abortTimeout = 2 * time.Second
)

// ErrTimeout is wrapped by errors of commands that the controller did not complete in time.
var ErrTimeout = errors.New("timed out")

// adminQueue is protected by Controller.admin.
type adminQueue struct {
	c    *Controller
	d    *DMA
	sq   []byte
	cq   []byte
	page int64 // bytes between the three parts: CC.MPS

	tail   int
	head   int
	phase  bool
	cid    uint16
	broken error // a command got no completion: no command is executed until the queue is reset

	bell func(tail uint32) error // rings the submission doorbell in place of the CPU; nil: the CPU does

	events   uint8             // Asynchronous Event Requests outstanding, a bit each: bit n is CID aerCID+n
	noEvents bool              // the controller refuses them
	seen     []nvme.AsyncEvent // received, not yet reported
}

// newAdminQueue allocates memory for queues with host pages of mps bytes.
func newAdminQueue(c *Controller, mps int64) (*adminQueue, error) {
	kind := c.Placement().Host
	d, err := c.AllocDMA(kind, 3*mps, mps)
	if err != nil {
		return nil, fmt.Errorf("admin queue: %w", err)
	}
	if d.Host == nil {
		return nil, errors.Join(fmt.Errorf("admin queue: %s gives no CPU view of %v memory", c.Runtime().Name(), kind), d.Close())
	}
	q := &adminQueue{c: c, d: d, page: mps}
	q.sq, q.cq = d.Host[:adminEntries*nvme.SQESize], d.Host[mps:mps+adminEntries*nvme.CQESize]
	return q, nil
}

// reset empties the queue, as an enabled controller expects it.
func (q *adminQueue) reset() {
	clear(q.d.Host[:2*q.page])
	q.tail, q.head, q.phase, q.cid, q.broken = 0, 0, true, 0, nil
	q.events, q.noEvents, q.seen = 0, false, nil
}

// data is the one page that commands transfer to and from.
func (q *adminQueue) data() []byte        { return q.d.Host[2*q.page : 2*q.page+PageSize] }
func (q *adminQueue) dataIOVA() nvme.IOVA { return q.d.IOVA + nvme.IOVA(2*q.page) }

// post writes an entry and rings the doorbell.
func (q *adminQueue) post(s *nvme.SQE) error {
	s.Encode(q.sq[q.tail*nvme.SQESize : (q.tail+1)*nvme.SQESize])
	q.tail = (q.tail + 1) % adminEntries
	// The entry is stored before the doorbell: the compiler does not move stores across the call of Transport.Write32, and
	// the processor or the transport keeps the order of stores.
	if q.bell != nil {
		return q.bell(uint32(q.tail))
	}
	q.c.t.Write32(q.c.stride.SQ(0), uint32(q.tail))
	return nil
}

// reap reads one completion if there is one.
func (q *adminQueue) reap() (nvme.CQE, bool) {
	e := q.cq[q.head*nvme.CQESize : (q.head+1)*nvme.CQESize]
	// The phase is in the last dword. It is loaded before the rest: dwords that were loaded earlier could be those of the
	// entry of the previous round.
	dw3 := atomic.LoadUint32((*uint32)(unsafe.Pointer(&e[12])))
	if dw3>>16&1 == 1 != q.phase {
		return nvme.CQE{}, false
	}
	cqe, err := nvme.DecodeCQE(e)
	if err != nil {
		panic(err) // of CQESize bytes
	}
	if q.head++; q.head == adminEntries {
		q.head, q.phase = 0, !q.phase
	}
	q.c.t.Write32(q.c.stride.CQ(0), uint32(q.head))
	return cqe, true
}

// usable is why commands cannot be executed, nil when they can. After Close the memory of the queue is freed.
func (q *adminQueue) usable(name string) error {
	if err := q.c.Err(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if q.broken != nil {
		return fmt.Errorf("%s: the admin queue is out of service: %w", name, q.broken)
	}
	return nil
}

// exec executes one command. Its error is a *nvme.StatusError when the controller completed it with an error.
func (q *adminQueue) exec(s nvme.SQE, timeout time.Duration) (nvme.CQE, error) {
	name := s.Opcode.Name(true)
	if err := q.usable(name); err != nil {
		return nvme.CQE{}, err
	}
	s.CID = q.cid
	if q.cid++; q.cid == aerCID {
		q.cid = 0
	}
	if err := q.post(&s); err != nil {
		q.broken = fmt.Errorf("%s: its doorbell was not rung: %w", name, err)
		return nvme.CQE{}, q.broken
	}
	var w poll.Waiter
	var waited nap.Wait
	for {
		if q.c.Step(0) {
			w.Progress()
		}
		cqe, ok := q.reap()
		switch {
		case ok && cqe.CID == s.CID:
			return cqe, s.Err(cqe.Status, true)
		case ok && q.event(cqe):
		case ok:
			q.broken = fmt.Errorf("the controller completed admin command %#x, which was not outstanding", cqe.CID)
			return nvme.CQE{}, q.broken
		case waited.Over(timeout):
			csts := q.c.CSTS()
			q.broken = fmt.Errorf("%s %w after %v, %v", name, ErrTimeout, timeout, csts)
			return nvme.CQE{}, q.broken
		default:
			w.Idle()
		}
	}
}

// adminCmd executes one command without data.
func (c *Controller) adminCmd(s nvme.SQE) (nvme.CQE, error) {
	c.admin.Lock()
	defer c.admin.Unlock()
	return c.aq.exec(s, c.cfg.Timeout)
}

// adminRead executes one command that fills into, of at most a page.
func (c *Controller) adminRead(s nvme.SQE, into []byte) (nvme.CQE, error) {
	c.admin.Lock()
	defer c.admin.Unlock()
	if err := c.aq.usable(s.Opcode.Name(true)); err != nil {
		return nvme.CQE{}, err
	}
	data := c.aq.data()[:len(into)]
	clear(data) // bytes that the controller does not write read as zero, not as data of an earlier command
	s.PRP1 = c.aq.dataIOVA()
	cqe, err := c.aq.exec(s, c.cfg.Timeout)
	if err == nil {
		copy(into, data)
	}
	return cqe, err
}

// IdentifyBy executes Identify Controller with its data at an IOVA, and has ring ring the doorbell in place of the CPU.
func (c *Controller) IdentifyBy(ring func(tail uint32) error, at nvme.IOVA) error {
	c.admin.Lock()
	defer c.admin.Unlock()
	c.aq.bell = ring
	defer func() { c.aq.bell = nil }()
	_, err := c.aq.exec(nvme.SQE{Opcode: nvme.AdminIdentify, CDW10: uint32(nvme.CNSController), PRP1: at}, c.cfg.Timeout)
	return err
}

// AdminErr is why the admin queue is out of service, nil while it works.
func (c *Controller) AdminErr() error {
	c.admin.Lock()
	defer c.admin.Unlock()
	return c.aq.broken
}
