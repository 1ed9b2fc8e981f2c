package softctl

import (
	"math"

	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// A lone read, write or flush may go without the rings of its queue pair: its caller would be the host, the lane and the controller, all on one thread,
// and what the three say to one another by way of memory costs more than all else. It is still a command of the queue: it has the queue's lock, so that nobody
// unmaps memory or resets the controller under it, and the queue's counters.
//
// What is not plain is refused, and what fails, too: the host sends it by the queue then, which has the status, the retries and the logs. A read or write that failed may have moved a part, as
// the one that follows will.

// loneShort is how many bytes a lone command of an image file has at most: what is longer takes many times as long as the rings.
const loneShort = 64 << 10

// LoneMost implements controller.LoneStepper: of Options that ask for a controller that is slow, or recorded, each command goes by the queue.
func (c *Controller) LoneMost() int64 {
	switch {
	case c.opt.NoLone || c.opt.Latency != 0 || c.opt.OutOfOrder || c.opt.Recorder != nil || len(c.files) > 1:
		return 0
	case c.files[0].Direct():
		return math.MaxInt64
	}
	return loneShort
}

// LonesWait implements controller.LoneStepper.
func (c *Controller) LonesWait() bool { return c.files[0].Direct() }

// Lone implements controller.LoneStepper.
func (c *Controller) Lone(sqid uint16, cmd controller.LoneCommand) bool {
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
	done := c.lone(q, cmd)
	q.mu.Unlock()
	return done
}

// lone is Lone with the queue's lock.
func (c *Controller) lone(q *subQueue, cmd controller.LoneCommand) bool {
	if q.dead || c.now() != stateReady || c.injector.Load() != nil {
		return false
	}
	ns, ok := c.namespace(cmd.NSID)
	if !ok {
		return false
	}
	n := int64(0)
	if cmd.Op == opFlush {
		if c.opt.ReadOnly || !c.cached.Load() || !ns.medium.FlushesAtOnce() || ns.medium.Flush() != nil {
			return false
		}
	} else {
		if n = c.loneMove(q, ns, cmd); n < 0 {
			return false
		}
	}
	q.stats.lone.add(cmd.Op, n)
	return true
}

// loneMove carries out a Read or Write. It gives the bytes that were moved, all, or -1.
func (c *Controller) loneMove(q *subQueue, ns *namespace, cmd controller.LoneCommand) int64 {
	write := cmd.Op == opWrite
	durable := write && (cmd.FUA || !c.cached.Load())
	if !write && cmd.Op != opRead || write && c.opt.ReadOnly || durable && !ns.medium.FlushesAtOnce() ||
		c.opt.MaxTransfer != Unlimited && uint64(cmd.Blocks)<<ns.shift > uint64(c.opt.MaxTransfer) {
		return -1
	}
	off, n, st := ns.span(cmd.SLBA, uint64(cmd.Blocks))
	if st != success {
		return -1
	}
	if t := c.dma.table.Load(); t != q.loneIn.table {
		q.loneIn.table, q.loneIn.last = t, nil
	}
	r, at, ok := q.loneIn.table.find(uint64(cmd.Data), uint64(n), &q.loneIn.last)
	if !ok {
		return -1
	}
	switch {
	case r.host == nil:
		ok = !write && c.loneCopy(ns.medium, r, at, off, n)
	case ns.image.Direct():
		ok = ns.image.Move(r.host[at:at+n], off, write)
	default:
		b := &q.data.buf
		b.Reset()
		b.Add(r.host[at : at+n])
		if write {
			ok = ns.medium.Write(b, off, durable, 0) == nil
		} else {
			ok = n < longCopy && copyPages(ns.medium, b, off, n, true) || ns.medium.Read(b, off) == nil
		}
	}
	if !ok {
		return -1
	}
	return n
}

// loneCopy reads into memory that the CPU cannot address, where a copy engine has the image's pages.
func (c *Controller) loneCopy(m media.Medium, r *region, at, off, n int64) bool {
	ch, part := m.View(off, n, true)
	if ch == nil {
		return false
	}
	defer ch.Release()
	return int64(len(part)) == n && c.opt.Mover.Write(r.mem, r.off+at, part) == nil
}

// found is where the data of a queue's last lone command was.
type found struct {
	table *table
	last  *region
}
