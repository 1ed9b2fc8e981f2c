package softctl

import (
	"errors"
	"sync"

	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// Reads, writes and discards of a block device go on by themselves: a step begins all that the host has announced, in one system call, and a later
// step completes what has ended. So a queue pair's depth is the device's. A lone command for which the caller of Step waits anyway is
// carried out at once, by a system call that waits: that is the shortest way, and often for the last of several, too (begins). It is also what is left where there is no io_uring.
//
// The way of such a command, with its queue's lock held but in 3:
//
//  1. begin    take a slot; find the command's memory; of a write copy what a device has to the slot's stage; start it
//  2. submit   hand all that were started to the kernel
//  3. await    whoever has nothing else to do waits for one that has ended, a little
//  4. reap     of a read copy the stage to where a device wants it; complete it

// direct is the ring of a submission queue.
type direct struct {
	ring  *media.Ring
	slots []directSlot
	free  []int // the last used is taken first
	// stages are those of slots for commands with a stage, which come last; of them, too, the last used is first. nil: no command has one.
	stages []int
	begun  int   // started and not submitted
	lost   bool  // the kernel has not taken what was started
	ended  []int // being completed
	held   map[*region]*use

	waiting sync.RWMutex // shared by those who await, so that the ring stays
}

// use is what a ring has had of a region that stays where it is.
type use struct {
	commands int
	held     int // what Ring.Hold gave; 0: nothing
}

// holdAfter is after how many commands of a queue it registers a region: to pin it costs as much as a few of them gain.
const holdAfter = 8

// directSlot is a command under way.
type directSlot struct {
	cmd    command
	ns     *namespace
	off, n int64
	data   vector
	ranges [][2]int64 // of a discard: offset and length of what is to be begun yet
	status Status     // once it has ended
}

const (
	directSlots = 256
	stagedSlots = 4         // beside them, each with a stage as large as a command
	slotStage   = 256 << 10 // the least stage of a slot
)

// newDirect gives a queue of size entries a ring; nil: there is none.
func (c *Controller) newDirect(size uint32) *direct {
	if c.noRing.Load() != nil || !c.files[0].Direct() || len(c.files) > 1 || c.ns[0].medium != media.Medium(c.files[0]) {
		return nil
	}
	n := directSlots
	if depth := c.files[0].Depth(); depth > 0 {
		n = min(n, max(depth, 32))
	}
	n = min(n, int(size))
	staged := 0
	if c.opt.Mover != nil {
		staged = min(stagedSlots, int(size))
	}
	ring, err := c.files[0].NewRing(n + staged)
	if err != nil {
		c.ringFailed(err)
		return nil
	}
	d := &direct{ring: ring, slots: make([]directSlot, n+staged), held: map[*region]*use{}}
	for at := range d.slots {
		if at >= n {
			d.slots[at].data.mover, d.slots[at].data.least = c.opt.Mover, slotStage
			d.stages = append(d.stages, at)
		} else {
			d.free = append(d.free, n-1-at)
		}
	}
	return d
}

// take gives a slot, which full says there is. give takes it back.
func (d *direct) take(staged bool) (at int) {
	from := &d.free
	if staged {
		from = &d.stages
	}
	at = (*from)[len(*from)-1]
	*from = (*from)[:len(*from)-1]
	return at
}

func (d *direct) give(at int) {
	if d.slots[at].data.mover != nil {
		d.stages = append(d.stages, at)
	} else {
		d.free = append(d.free, at)
	}
}

// ringFailed notes that a queue has no ring, and says it once.
func (c *Controller) ringFailed(err error) {
	if c.noRing.CompareAndSwap(nil, &err) {
		c.log.Warn("no io_uring for the device: its queues carry out one command at a time", "error", err)
	}
}

// Direct says whether the image is a block device that is read and written round the page cache.
func (c *Controller) Direct() bool { return c.files[0].Direct() }

// Path says how blocks get to and from the image, for people.
func (c *Controller) Path() string {
	if !c.files[0].Direct() {
		return "page cache"
	}
	if err := c.noRing.Load(); err != nil {
		return "O_DIRECT by calls that wait: " + (*err).Error()
	}
	if err := c.notHeld.Load(); err != nil {
		return "O_DIRECT by io_uring, memory not registered: " + (*err).Error()
	}
	return "O_DIRECT by io_uring"
}

// hold is the number by which d's ring knows the memory of a command, 0 where it does not: of pieces of several regions, of memory that somebody else
// may cut up meanwhile, and of what the kernel does not pin.
func (c *Controller) hold(d *direct, v *vector) int {
	r := v.pieces[0].r
	if v.staged || !r.stays {
		return 0
	}
	for _, p := range v.pieces[1:] {
		if p.r != r {
			return 0
		}
	}
	u := d.held[r]
	if u == nil {
		u = &use{}
		d.held[r] = u
	}
	if u.commands++; u.commands == holdAfter {
		var err error
		if u.held, err = d.ring.Hold(r.host); err != nil && c.notHeld.CompareAndSwap(nil, &err) {
			c.log.Warn("io_uring does not take memory: each command pins its own", "error", err)
		}
	}
	return u.held
}

// drop lets go of a region that is not mapped any more. No command is under way.
func (d *direct) drop(r *region) {
	if d == nil || d.held[r] == nil {
		return
	}
	if u := d.held[r]; u.held != 0 {
		d.ring.Drop(u.held)
	}
	delete(d.held, r)
}

// inFlight is how many commands are under way.
func (d *direct) inFlight() int {
	if d == nil {
		return 0
	}
	return d.ring.InFlight()
}

// full says that no slot is free for a command, whose memory is not known yet.
func (d *direct) full() bool {
	return d != nil && (len(d.free) == 0 || d.stages != nil && len(d.stages) == 0)
}

// begins says whether a command of n bytes goes on by itself. last: the host has announced no other, and the caller waits. Such a one does not where it is
// alone, nor where it is long and all others were begun with it, on a machine with a CPU to spare: each command that ends in the ring wakes the caller, who has nothing to do yet,
// and it is the device's thread that sends an interrupt to his CPU. A thread in a call that waits is not woken, and finds all that have ended when it returns. But where it has to
// wait for a CPU then, that comes on top of what the device takes, and one that was woken early has its CPU by then.
func (d *direct) begins(cmd *command, n int64, last, durable bool) bool {
	if d == nil || d.full() || cmd.opcode != opRead && cmd.opcode != opWrite { // full: only for what a batch carries out again
		return false
	}
	if !last || cmd.opcode == opWrite && durable { // which by a call that waits would be flushed besides
		return true
	}
	under := d.inFlight()
	return under > 0 && (under > d.begun || n < longCopy || !cpuPressure.isLow())
}

// begin starts a read or write that was checked.
func (c *Controller) begin(q *subQueue, cmd *command, ns *namespace, off, n int64, durable bool) (st Status) {
	d := q.direct
	at := d.take(false)
	defer func() {
		if st != noCompletion {
			d.give(at)
		}
	}()
	s := &d.slots[at]
	v := &s.data
	v.reset()
	if st := c.dma.walkPRP(v, cmd.prp1, cmd.prp2, n, q.page); st != success {
		return st
	}
	if v.staged {
		d.give(at)
		at = d.take(true)
		s, v = &d.slots[at], &d.slots[at].data
		v.reset()
		if st := c.dma.walkPRP(v, cmd.prp1, cmd.prp2, n, q.page); st != success {
			return st
		}
	}
	write := cmd.opcode == opWrite
	if v.staged {
		v.grow(v.n)
		if write && v.gather() != nil {
			return dataTransferError
		}
	}
	data := v.host()
	data.In(c.hold(d, v))
	if err := d.ring.Start(at, data, off, write, durable); err != nil {
		return c.mediaStatus(verb(write), ns, off, fault(write), err)
	}
	s.cmd, s.ns, s.off, s.n = *cmd, ns, off, n
	d.begun++
	return noCompletion
}

// beginDiscard starts a Dataset Management command: one range after the other.
func (c *Controller) beginDiscard(q *subQueue, cmd *command, ns *namespace, ranges [][2]int64) Status {
	d := q.direct
	at := d.take(false)
	s := &d.slots[at]
	s.cmd, s.ns, s.ranges = *cmd, ns, ranges
	st := c.nextRange(d, at)
	if st != noCompletion {
		d.give(at)
	}
	return st
}

// nextRange starts a discard's next range. success: there is none.
func (c *Controller) nextRange(d *direct, at int) Status {
	s := &d.slots[at]
	if len(s.ranges) == 0 {
		return success
	}
	s.off, s.n = s.ranges[0][0], s.ranges[0][1]
	s.ranges = s.ranges[1:]
	if err := d.ring.StartDiscard(at, s.off, s.n); err != nil {
		return c.mediaStatus("deallocate", s.ns, s.off, WriteFault, err)
	}
	d.begun++
	return noCompletion
}

func verb(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

func fault(write bool) Status {
	if write {
		return WriteFault
	}
	return unrecoveredRead
}

// move submits what was begun, and completes what has ended.
func (c *Controller) move(q *subQueue) (did bool) {
	d := q.direct
	if d.inFlight() == 0 {
		return false
	}
	if !c.submit(q) {
		return true
	}
	var pipe copyengine.Pipe // of all reads that have ended: they are waited for once
	for {
		at, err, ok := d.ring.Reap()
		if !ok {
			break
		}
		s := &d.slots[at]
		s.status = success
		if s.cmd.opcode == opDSM {
			if err != nil {
				s.status = c.mediaStatus("deallocate", s.ns, s.off, WriteFault, err)
			} else if s.status = c.nextRange(d, at); s.status == noCompletion {
				did = true
				continue
			}
		} else if write := s.cmd.opcode == opWrite; err != nil {
			s.status = c.mediaStatus(verb(write), s.ns, s.off, fault(write), err)
		} else if !write && s.data.deliver(&pipe) != nil {
			s.status = dataTransferError
		}
		d.ended = append(d.ended, at)
	}
	var broken error
	if pipe != nil {
		broken = pipe.Close()
	}
	stuck := errors.Is(broken, copyengine.ErrStuck)
	for _, at := range d.ended {
		s := &d.slots[at]
		d.give(at)
		if stuck && s.data.staged {
			s.data.leave()
		}
		switch {
		case s.status != success || s.cmd.opcode == opDSM:
		case s.cmd.opcode == opWrite:
			q.stats.moved(true, s.n)
		case broken != nil && s.data.staged:
			s.status = dataTransferError
		default:
			q.stats.moved(false, s.n)
		}
		c.finish(q, &s.cmd, s.status, 0)
		did = true
	}
	d.ended = d.ended[:0]
	if !c.submit(q) { // further ranges of discards
		return true
	}
	return did
}

// submit hands what was begun to the kernel, and says whether it took it.
func (c *Controller) submit(q *subQueue) bool {
	d := q.direct
	if d.begun == 0 || d.lost {
		return !d.lost
	}
	d.begun = 0
	if err := d.ring.Submit(); err != nil {
		d.lost = true
		c.ringFailed(err) // the queue that follows a reset may have none
		c.fail("io_uring takes no more commands", "queue", q.id, "error", err)
		return false
	}
	return true
}

// deliver copies what was read into the stage to where the command wants it. The copies may go on until the pipe is closed.
func (v *vector) deliver(pipe *copyengine.Pipe) (err error) {
	if !v.staged {
		return nil
	}
	mover, ok := v.mover.(copyengine.Piper)
	if !ok {
		return v.scatter()
	}
	if *pipe == nil {
		if *pipe, err = mover.Pipe(); err != nil {
			return err
		}
	}
	at := v.stage[:v.n]
	for _, to := range v.pieces {
		if to.r.host != nil {
			copy(to.r.host[to.off:], at[:to.n])
		} else if err = (*pipe).Write(to.r.mem, to.r.off+to.off, at[:to.n]); err != nil {
			return err
		}
		at = at[to.n:]
	}
	return nil
}

// await gives the device time, without the queue's lock. It says whether anything was under way.
func (q *subQueue) await() bool {
	q.mu.Lock()
	d := q.direct
	under := d.inFlight() > 0
	if under {
		d.waiting.RLock()
	}
	q.mu.Unlock()
	if !under {
		return false
	}
	d.ring.Await()
	d.waiting.RUnlock()
	return true
}

// finishAll completes what is under way: after it the kernel uses no memory of the queue's commands. The caller holds the queue's lock. A step in which the controller
// has failed may have left commands that were not submitted: without that they would never end.
func (c *Controller) finishAll(q *subQueue) {
	for q.direct.inFlight() > 0 {
		if !c.submit(q) {
			q.endDirect() // of what the kernel has not taken it says nothing any more
			return
		}
		if c.now() != stateReady {
			if _, _, ok := q.direct.ring.Reap(); ok {
				continue
			}
		} else if c.move(q) {
			continue
		}
		q.direct.ring.Await()
	}
}

// endDirect waits for what is under way, and ends the ring. The caller holds q.mu.
func (q *subQueue) endDirect() {
	d := q.direct
	if d == nil {
		return
	}
	q.direct = nil
	d.waiting.Lock()
	defer d.waiting.Unlock()
	d.ring.Close()
	for i := range d.slots {
		d.slots[i].data.unstage()
	}
}
