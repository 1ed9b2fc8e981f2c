package jbd2

import (
	"fmt"
	"slices"
)

// TID names a transaction. TIDs wrap and are compared by signed difference.
type TID uint32

// After says whether t is later than u.
func (t TID) After(u TID) bool { return int32(t-u) > 0 }

// Handle is one operation's permission to change buffers. It belongs to one goroutine.
type Handle struct {
	j       *Journal
	txn     *transaction
	credits int // blocks that may still be dirtied; protected by Journal.mu

	undo      *undoMemory // what Undo does; nil: nothing
	forgotten []Block     // to be forgotten when the handle ends, if nothing was undone
	blind     bool        // something was dirtied that Undo cannot put back
}

// TID is the transaction that the handle's changes belong to: WaitCommit of it makes them durable.
func (h *Handle) TID() TID { return h.txn.tid }

// Fits says whether the log can take the transaction as it is: a question for a caller that was allowed fewer credits than
// it may have needed. What does not fit can be given up by an Abort before End.
func (h *Handle) Fits() error {
	h.j.mu.Lock()
	defer h.j.mu.Unlock()
	t := h.live()
	n := h.j.sink.blocks(len(t.dirty)+h.j.cfg.BeforeCommitCredits, len(t.revoked))
	if most := h.j.sink.capacity(); n > most {
		return fmt.Errorf("%w: %d blocks, the log holds %d", ErrTooLarge, n, most)
	}
	if most := h.j.cache.stage.capacity(); n > most {
		return fmt.Errorf("%w: %d blocks, the journal has memory for %d", ErrTooLarge, n, most)
	}
	return nil
}

func (h *Handle) live() *transaction {
	if h.txn == nil {
		panic("jbd2: use of a handle after End")
	}
	return h.txn
}

// Dirty makes b part of the transaction: a commit writes what b holds by then. The caller holds b and its lock. The
// buffer stays in memory until it is written. A block that was not announced before it changed, see Save, keeps the handle
// from being undone.
func (h *Handle) Dirty(b *Buffer) {
	if !h.announced(b) {
		h.blind = true
	}
	h.dirty(b)
}

func (h *Handle) dirty(b *Buffer) {
	t := h.live()
	if len(h.forgotten) > 0 { // freed and put to use again by one operation
		h.forgotten = slices.DeleteFunc(h.forgotten, func(f Block) bool { return f == b.block })
	}
	if b.txn.Load() == t {
		return
	}
	h.j.mu.Lock()
	defer h.j.mu.Unlock()
	if b.txn.Load() == t || h.j.err != nil {
		return // after an abort nothing is written any more
	}
	if old := t.dirty[b.block]; old != nil {
		panic(fmt.Sprintf("jbd2: block %d is dirty in two buffers", b.block))
	}
	b.ref()
	b.txn.Store(t)
	t.dirty[b.block] = b
	delete(t.revoked, b.block) // journalled again: the revoke no longer holds
	if h.credits > 0 {
		h.credits--
		t.reserved--
	} else {
		h.j.cache.counters.overruns.Add(1)
	}
	h.j.armLocked(t)
}

// Forget says that metadata block b was freed: what it held need not be written, and older copies of it in the log must
// not be replayed over whatever the block is used for next. It takes effect when the handle ends. The block may be used
// again for file data only after this transaction has committed (see OnCommit). It costs no credits.
func (h *Handle) Forget(b Block) {
	h.live()
	h.forgotten = append(h.forgotten, b)
}

func (h *Handle) forget(b Block) {
	t := h.live()
	h.j.mu.Lock()
	buf := t.dirty[b]
	if buf != nil {
		delete(t.dirty, b)
		buf.txn.Store(nil)
	}
	t.revoked[b] = struct{}{}
	h.j.armLocked(t)
	h.j.mu.Unlock()
	h.j.cache.forget(b)
	if buf != nil {
		buf.unref()
	}
}

// forget takes b out of the map if it is there.
func (c *Cache) forget(b Block) {
	s := c.shardOf(b)
	s.mu.Lock()
	buf := s.blocks[b]
	s.mu.Unlock()
	if buf != nil {
		buf.detach()
	}
}

// OnCommit lets f run once this transaction is durable, before what waits for the commit goes on. It runs on the
// goroutine that commits and must not call into the Journal. After an abort it does not run.
func (h *Handle) OnCommit(f func()) {
	t := h.live()
	h.j.mu.Lock()
	t.onCommit = append(t.onCommit, f)
	h.j.armLocked(t)
	h.j.mu.Unlock()
}

// End ends the operation. The error is not nil if the journal was aborted meanwhile: the changes will not reach the
// medium.
func (h *Handle) End() error {
	t := h.live()
	h.keep()
	h.txn = nil
	j := h.j
	j.mu.Lock()
	defer j.mu.Unlock()
	t.reserved -= h.credits
	t.open--
	if t.open == 0 && j.closing {
		j.idle.Signal()
	}
	return j.err
}
