package controller

import (
	"fmt"
	"slices"

	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// I/O queue pairs: their identifiers, and the admin commands that create, delete and abort.

// AllocQIDs reserves up to n identifiers of I/O queue pairs.
func (c *Controller) AllocQIDs(n int) []uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, len(c.qids))
	got := append([]uint16(nil), c.qids[:n]...)
	c.qids = c.qids[n:]
	return got
}

// FreeQIDs gives them back.
func (c *Controller) FreeQIDs(qids []uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qids = append(c.qids, qids...)
	slices.Sort(c.qids)
}

// CreateQueuePair creates I/O queue pair qid of physically contiguous queues, without interrupts (Base §3.3.1.1: the completion
// queue first). Both queues have that many entries.
func (c *Controller) CreateQueuePair(qid uint16, sq, cq nvme.IOVA, entries int) error {
	if err := c.createCQ(qid, cq, entries); err != nil {
		return err
	}
	if err := c.createSQ(qid, sq, entries); err != nil {
		c.deleteCQ(qid) // best effort: err is what matters
		return err
	}
	return nil
}

// DeleteQueuePair deletes it. After it has returned nil, no command of the queue accesses memory (Base §5.7).
func (c *Controller) DeleteQueuePair(qid uint16) error {
	if err := c.deleteSQ(qid); err != nil {
		return err
	}
	return c.deleteCQ(qid)
}

// createCQ is Create I/O Completion Queue (Base §5.4).
func (c *Controller) createCQ(qid uint16, at nvme.IOVA, size int) error {
	_, err := c.adminCmd(nvme.SQE{Opcode: nvme.AdminCreateCQ, PRP1: at, CDW10: uint32(qid) | uint32(size-1)<<16, CDW11: 1})
	return wrapQueue(err, qid)
}

// createSQ is Create I/O Submission Queue (Base §5.5).
func (c *Controller) createSQ(qid uint16, at nvme.IOVA, size int) error {
	_, err := c.adminCmd(nvme.SQE{Opcode: nvme.AdminCreateSQ, PRP1: at, CDW10: uint32(qid) | uint32(size-1)<<16,
		CDW11: 1 | uint32(qid)<<16})
	return wrapQueue(err, qid)
}

// deleteSQ is Delete I/O Submission Queue (Base §5.7), which ends every command of the queue.
func (c *Controller) deleteSQ(qid uint16) error {
	_, err := c.adminCmd(nvme.SQE{Opcode: nvme.AdminDeleteSQ, CDW10: uint32(qid)})
	return wrapQueue(err, qid)
}

// deleteCQ is Delete I/O Completion Queue (Base §5.6).
func (c *Controller) deleteCQ(qid uint16) error {
	_, err := c.adminCmd(nvme.SQE{Opcode: nvme.AdminDeleteCQ, CDW10: uint32(qid)})
	return wrapQueue(err, qid)
}

func wrapQueue(err error, qid uint16) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("I/O queue %d: %w", qid, err)
}

// Abort aborts one command (Base §5.1) and says whether the controller did so. Either way the command has ended only when its own
// completion has come.
func (c *Controller) Abort(sqid, cid uint16) (bool, error) {
	c.admin.Lock()
	defer c.admin.Unlock()
	cqe, err := c.aq.exec(nvme.SQE{Opcode: nvme.AdminAbort, CDW10: uint32(sqid) | uint32(cid)<<16}, min(abortTimeout, c.cfg.Timeout))
	return err == nil && cqe.DW0&1 == 0, err
}
