package softctl

import (
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// A lone read or write of a block device may go without the rings of its queue pair: its caller would be the host, the lane and the controller, all on one thread,
// and what the three say to one another by way of memory costs more than all else. It is still a command of the queue: it has the queue's lock, so that nobody
// unmaps memory or resets the controller under it, and the queue's counters.
//
// What is not plain is refused, and what fails, too: the host sends it by the queue then, which has the status, the retries and the logs. A read or write that failed may have moved a part, as
// the one that follows will.

// Lones implements controller.LoneStepper: of Options that ask for a controller that is slow, or recorded, each command goes by the queue.
func (c *Controller) Lones() bool {
	return c.opt.Latency == 0 && !c.opt.OutOfOrder && c.opt.Recorder == nil && len(c.files) == 1 && c.files[0].Direct()
}

// Lone implements controller.LoneStepper.
func (c *Controller) Lone(sqid uint16, op nvme.Opcode, nsid uint32, slba, blocks uint64, data nvme.IOVA) bool {
	if sqid == 0 || int(sqid) >= len(c.sq) {
		return false
	}
	q := c.sq[sqid].Load()
	if q == nil {
		return false
	}
	if c.threads != nil {
		q.leave()
	}
	if !q.mu.TryLock() {
		return false
	}
	done := c.lone(q, uint8(op), nsid, slba, blocks, uint64(data))
	q.mu.Unlock()
	return done
}

// lone is Lone with the queue's lock.
func (c *Controller) lone(q *subQueue, op uint8, nsid uint32, slba, blocks, data uint64) bool {
	write := op == opWrite
	if q.dead || c.now() != stateReady || c.injector.Load() != nil || write && (c.opt.ReadOnly || !c.cached.Load()) {
		return false
	}
	ns, ok := c.namespace(nsid)
	if !ok || c.opt.MaxTransfer != Unlimited && blocks<<ns.shift > uint64(c.opt.MaxTransfer) {
		return false
	}
	off, n, st := ns.span(slba, blocks)
	if st != success {
		return false
	}
	if t := c.dma.table.Load(); t != q.loneIn.table {
		q.loneIn.table, q.loneIn.last = t, nil
	}
	r, at, ok := q.loneIn.table.find(data, uint64(n), &q.loneIn.last)
	if !ok || r.host == nil || !ns.image.Move(r.host[at:at+n], off, write) {
		return false
	}
	q.stats.commands.Add(1)
	q.stats.opcodes[op].Add(1)
	q.stats.moved(write, n)
	return true
}

// found is where the data of a queue's last lone command was.
type found struct {
	table *table
	last  *region
}
