package softctl

// Opcodes of the admin command set ([BASE] figure "Opcodes for Admin Commands"). Those of what Identify says is not
// supported (firmware, format, security, self-test, directives, namespace management, keep alive) answer Invalid Command
// Opcode like any other unknown one.
const (
	opDeleteSQ    = 0x00
	opCreateSQ    = 0x01
	opGetLogPage  = 0x02
	opDeleteCQ    = 0x04
	opCreateCQ    = 0x05
	opIdentify    = 0x06
	opAbort       = 0x08
	opSetFeatures = 0x09
	opGetFeatures = 0x0a
	opAsyncEvent  = 0x0c
)

// admin carries out an admin command. The caller holds Controller.mu.
func (c *Controller) admin(q *subQueue, cmd *command) (Status, uint32) {
	var f func(*subQueue, *command) (Status, uint32)
	switch cmd.opcode {
	case opDeleteSQ:
		f = c.deleteSQ
	case opCreateSQ:
		f = c.createSQ
	case opGetLogPage:
		f = c.getLogPage
	case opDeleteCQ:
		f = c.deleteCQ
	case opCreateCQ:
		f = c.createCQ
	case opIdentify:
		f = c.identify
	case opAbort:
		f = c.abort
	case opSetFeatures:
		f = c.setFeatures
	case opGetFeatures:
		f = c.getFeatures
	case opAsyncEvent:
		f = func(_ *subQueue, cmd *command) (Status, uint32) { return c.asyncEventRequest(cmd), 0 }
	default:
		return invalidOpcode, 0
	}
	if cmd.fuse != 0 || cmd.psdt != 0 { // admin commands of a PCI controller use PRPs
		return invalidField, 0
	}
	return f(q, cmd)
}

// reply sends data to the host. len(b) is what the command asked for.
func (c *Controller) reply(q *subQueue, cmd *command, b []byte) Status {
	v := &q.data
	v.reset()
	if st := c.dma.walkPRP(v, cmd.prp1, cmd.prp2, int64(len(b)), q.page); st != success {
		return st
	}
	if v.put(b) != nil {
		return dataTransferError
	}
	return success
}

// queueIDValid says that id can name an I/O queue: within what the controller has and Number of Queues allotted.
func (c *Controller) queueIDValid(id uint32, allotted uint32) bool {
	return id != 0 && id < uint32(len(c.sq)) && id <= allotted
}

// createCQ is Create I/O Completion Queue ([BASE] 5.4).
func (c *Controller) createCQ(_ *subQueue, cmd *command) (Status, uint32) {
	id, size := cmd.cdw10&0xffff, cmd.cdw10>>16+1
	vector := cmd.cdw11 >> 16
	switch {
	case !c.queueIDValid(id, c.features.allottedCQ) || c.cq[id] != nil:
		return invalidQueueID, 0
	case size < 2 || size > uint32(c.opt.Depth) || c.cc.iocqes() != cqes:
		return invalidQueueSize, 0
	case cmd.cdw11&1 == 0: // PC, and CAP.CQR is set
		return invalidField, 0
	case vector > uint32(c.opt.Queues): // one for each queue and the admin queue's
		return invalidInterruptVector, 0
	case cmd.prp1%uint64(c.cc.pageSize()) != 0:
		return invalidPRPOffset, 0
	case !c.dma.mapped(cmd.prp1, uint64(size)*cqeSize):
		return dataTransferError, 0
	}
	c.cq[id] = c.newCompQueue(uint16(id), size, cmd.prp1)
	return success, 0
}

// createSQ is Create I/O Submission Queue ([BASE] 5.5).
func (c *Controller) createSQ(_ *subQueue, cmd *command) (Status, uint32) {
	id, size := cmd.cdw10&0xffff, cmd.cdw10>>16+1
	cqid := cmd.cdw11 >> 16
	switch {
	case !c.queueIDValid(id, c.features.allottedSQ) || c.sq[id].Load() != nil:
		return invalidQueueID, 0
	case !c.queueIDValid(cqid, c.features.allottedCQ):
		return invalidQueueID, 0
	case c.cq[cqid] == nil:
		return invalidCompletionQueue, 0
	case size < 2 || size > uint32(c.opt.Depth) || c.cc.iosqes() != sqes:
		return invalidQueueSize, 0
	case cmd.cdw11&1 == 0:
		return invalidField, 0
	case cmd.prp1%uint64(c.cc.pageSize()) != 0:
		return invalidPRPOffset, 0
	case !c.dma.mapped(cmd.prp1, uint64(size)*sqeSize):
		return dataTransferError, 0
	}
	c.sq[id].Store(c.newSubQueue(uint16(id), size, cmd.prp1, c.cq[cqid]))
	return success, 0
}

// deleteSQ is Delete I/O Submission Queue ([BASE] 5.7). It waits for a step that is under way; commands that were
// fetched and not carried out, and flushes, are completed as aborted first, and what a device has begun is awaited.
func (c *Controller) deleteSQ(_ *subQueue, cmd *command) (Status, uint32) {
	id := cmd.cdw10 & 0xffff
	if !c.queueIDValid(id, c.features.allottedSQ) || c.sq[id].Load() == nil {
		return invalidQueueID, 0
	}
	q := c.sq[id].Load()
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.held {
		c.complete(q, &q.held[i].command, abortedSQDeletion, 0)
	}
	for i := range q.flushes {
		c.complete(q, &q.flushes[i].command, abortedSQDeletion, 0)
	}
	c.finishAll(q) // what the device has begun ends as it ends
	q.dead, q.held, q.flushes = true, nil, nil
	q.endDirect()
	q.data.unstage()
	q.cq.users--
	c.sq[id].Store(nil)
	c.bar.store(c.bar.sqDoorbell(uint16(id)), 0)
	return success, 0
}

// deleteCQ is Delete I/O Completion Queue ([BASE] 5.6).
func (c *Controller) deleteCQ(_ *subQueue, cmd *command) (Status, uint32) {
	id := cmd.cdw10 & 0xffff
	if !c.queueIDValid(id, c.features.allottedCQ) || c.cq[id] == nil {
		return invalidQueueID, 0
	}
	if c.cq[id].users > 0 {
		return invalidQueueDeletion, 0
	}
	c.cq[id] = nil
	c.bar.store(c.bar.cqDoorbell(uint16(id)), 0)
	return success, 0
}

// abort is Abort ([BASE] 5.1): it finds commands that were fetched and wait for their time, and event requests. Dword 0
// bit 0 says that the command was not aborted.
func (c *Controller) abort(admin *subQueue, cmd *command) (Status, uint32) {
	id, cid := cmd.cdw10&0xffff, uint16(cmd.cdw10>>16)
	if id == 0 {
		for i, a := range c.aers {
			if a == cid {
				c.aers = append(c.aers[:i], c.aers[i+1:]...)
				c.complete(admin, &command{cid: cid, opcode: opAsyncEvent}, abortRequested, 0)
				return success, 0
			}
		}
		return success, 1
	}
	if id >= uint32(len(c.sq)) {
		return invalidField, 1
	}
	q := c.sq[id].Load()
	if q == nil {
		return invalidField, 1
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.held {
		if q.held[i].cid == cid {
			victim := q.held[i].command
			q.held = append(q.held[:i], q.held[i+1:]...)
			c.complete(q, &victim, abortRequested, 0)
			return success, 0
		}
	}
	return success, 1
}
