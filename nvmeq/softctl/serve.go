package softctl

import "time"

// The way of a command, all on the thread that called Step, with its queue's lock held:
//
//  1. serve        post completions that waited for room; read the tail doorbell
//  2. fetch        copy one entry while the completion queue has room; advance the head
//  3. hold         with latency or disorder: set aside until its time (serveHeld)
//  4. carryOut     ask the injector; check; move data between image and mapped memory. A flush goes on by itself (flush.go), and data in
//                  memory that the CPU cannot address goes with others' of the sweep (batch.go).
//                  Reads and writes of a block device go on by themselves, too (direct.go)
//  5. complete     error log, counters, completion entry
//
// Steps of different queues run in parallel; they meet only in a completion queue that they share.

// serve is one step of a queue. What it puts into b is completed when b is settled.
func (c *Controller) serve(q *subQueue, b *batch) bool {
	did := q.cq.drain(c)
	c.readTail(q)
	arrival := uint64(c.opt.Recorder.Position())
	for q.head != q.tail && uint32(len(q.held)+len(q.flushes)+q.direct.inFlight()) < q.size && !q.direct.full() && q.cq.room(c, q.deferred) {
		if !c.fetch(q) {
			c.fail("submission queue is not mapped", "queue", q.id, "iova", q.ring.base)
			return true
		}
		did = true
		q.cmd.arrival = arrival
		if q.id != 0 && (q.rng != nil || c.opt.Latency > 0) {
			q.held = append(q.held, heldCommand{q.cmd, time.Now().Add(c.opt.Latency)})
		} else {
			c.carryOut(q, &q.cmd, b)
		}
		if c.now() != stateReady || q.dead {
			return true
		}
	}
	if len(q.held) > 0 && c.serveHeld(q, b) {
		did = true
	}
	return c.move(q) || did
}

// serveHeld carries out commands whose time has come: all of them in order, or with disorder some of them in any.
// At least one is carried out if one is due.
func (c *Controller) serveHeld(q *subQueue, b *batch) bool {
	now := time.Now()
	due := 0
	for due < len(q.held) && !now.Before(q.held[due].due) {
		due++ // in order of arrival, so in order of time
	}
	n := due
	if q.rng != nil && due > 0 {
		n = 1 + q.rng.IntN(due)
	}
	did := false
	for ; n > 0 && !q.direct.full() && q.cq.room(c, q.deferred); n-- {
		i := 0
		if q.rng != nil {
			i = q.rng.IntN(due)
		}
		q.cmd = q.held[i].command
		q.held = append(q.held[:i], q.held[i+1:]...)
		due--
		c.carryOut(q, &q.cmd, b)
		did = true
		if c.now() != stateReady {
			break
		}
	}
	return did
}

// noCompletion is returned instead of a status by commands that stay outstanding.
const noCompletion Status = 0xffff

// carryOut executes a command and completes it, unless it goes into b.
func (c *Controller) carryOut(q *subQueue, cmd *command, b *batch) {
	cmd.verdict = Verdict{}
	if i := c.injector.Load(); i != nil {
		cmd.verdict = (*i).Command(c.describe(q, cmd))
	}
	v := &cmd.verdict
	if v.Fatal {
		c.fail("injected", "queue", q.id, "command", cmd.cid)
		return
	}
	q.stats.commands.Add(1)
	q.stats.opcodes[cmd.opcode].Add(1)
	st, result := v.Status, uint32(0)
	if st == success {
		if q.id == 0 {
			st, result = c.admin(q, cmd)
		} else {
			st = c.io(q, cmd, b)
		}
	}
	if st != noCompletion {
		c.finish(q, cmd, st, result)
	}
}

// finish completes a command that was carried out, as far as the injector lets it.
func (c *Controller) finish(q *subQueue, cmd *command, st Status, result uint32) {
	if cmd.verdict.Drop {
		return
	}
	cid := cmd.cid
	cmd.cid ^= cmd.verdict.XorCID
	c.complete(q, cmd, st, result)
	cmd.cid = cid
}

func (c *Controller) complete(q *subQueue, cmd *command, st Status, result uint32) {
	if st.failed() {
		q.stats.failed.Add(1)
		if st&statusCode != abortRequested && st&statusCode != abortedSQDeletion {
			c.errors.add(q.id, cmd, st)
			st |= statusMore
		}
	}
	q.cq.post(c, completion{result: result, sqHead: uint16(q.head), sqID: q.id, cid: cmd.cid, status: st})
}

func (c *Controller) describe(q *subQueue, cmd *command) Command {
	d := Command{Queue: q.id, ID: cmd.cid, Opcode: cmd.opcode, NSID: cmd.nsid, Admin: q.id == 0}
	if !d.Admin {
		switch cmd.opcode {
		case opRead, opWrite, opCompare, opWriteZeroes, opVerify:
			d.SLBA, d.Blocks = cmd.slba(), cmd.blocks()
		}
	}
	return d
}
