package jbd2

import "sync"

// What a handle can take back. An operation that fails after its first change has three ends to choose from: go on to its
// own end, put everything back (Undo), or stop the journal before any of it can be committed (Journal.Fail). Undo puts back
//
//   - blocks that only this operation may change, from a copy of the whole block: Save, before the first change;
//   - new blocks, which leave the transaction: Created;
//   - its own part of blocks that other handles change meanwhile, such as a bit of a bitmap: DirtyShared, and a function
//     given to OnUndo that makes the opposite change in memory.
//
// A change that was announced in none of these ways can't be taken back, and Undo says so.

// undoStep is one thing to be put back.
type undoStep struct {
	f     func()    // nil: restore image, or take a new block out
	buf   *Buffer   // referenced, where it is not nil
	image []byte    // of buf before the first change; nil for a new block
	more  []*Buffer // referenced: what f needs in memory
}

var images = sync.Pool{New: func() any { return new([]byte) }}

// Save keeps a copy of what b holds, for Undo. It is called before the first change of a block that no other
// operation may change or dirty until the handle has ended. A second call for one block does nothing.
func (h *Handle) Save(b *Buffer) {
	h.live()
	if _, ok := h.saved[b]; ok {
		return
	}
	p := images.Get().(*[]byte)
	*p = append((*p)[:0], b.data...)
	h.announce(b)
	h.steps = append(h.steps, undoStep{buf: b, image: *p})
}

// Created says that b is a block which was allocated under this handle: Undo takes it out of the transaction and out of the
// cache, since the block is free again then.
func (h *Handle) Created(b *Buffer) {
	h.live()
	if _, ok := h.saved[b]; ok {
		return
	}
	h.announce(b)
	h.steps = append(h.steps, undoStep{buf: b})
}

func (h *Handle) announce(b *Buffer) {
	if h.saved == nil {
		h.saved = map[*Buffer]struct{}{}
	}
	b.ref()
	h.saved[b] = struct{}{}
}

// OnUndo has f called by Undo, after the functions and copies that come later. f must not fail or wait for I/O: what it needs of
// the cache is in bufs, which stay in memory until the handle ends.
func (h *Handle) OnUndo(f func(), bufs ...*Buffer) {
	h.live()
	for _, b := range bufs {
		b.ref()
	}
	h.steps = append(h.steps, undoStep{f: f, more: bufs})
}

// DirtyShared is Dirty for a block that other handles change at the same time, each a part of its own. The caller takes
// the change back by OnUndo, or may leave it as it is.
func (h *Handle) DirtyShared(b *Buffer) { h.dirty(b) }

// Undo puts back what was changed under the handle, latest first. It reports false if there was a change that it can't put
// back: then the journal must not commit this transaction. The handle is still to be ended.
func (h *Handle) Undo() bool {
	h.live()
	h.forgotten = nil
	for len(h.steps) > 0 { // f may dirty blocks, and add no steps
		k := len(h.steps) - 1
		s := h.steps[k]
		h.steps = h.steps[:k]
		switch {
		case s.f != nil:
			s.f()
		case s.image != nil:
			s.buf.Lock()
			copy(s.buf.data, s.image)
			s.buf.Unlock()
		default:
			h.takeOut(s.buf)
		}
		h.release(s)
	}
	return !h.blind
}

// takeOut makes b, a block that is free again, no part of the transaction.
func (h *Handle) takeOut(b *Buffer) {
	t, j := h.txn, h.j
	j.mu.Lock()
	mine := t.dirty[b.block] == b
	if mine {
		delete(t.dirty, b.block)
		b.txn.Store(nil)
	}
	j.mu.Unlock()
	b.detach()
	if mine {
		b.unref()
	}
}

// release frees what a step holds.
func (h *Handle) release(s undoStep) {
	if s.image != nil {
		images.Put(&s.image)
	}
	if s.buf != nil {
		delete(h.saved, s.buf)
		s.buf.unref()
	}
	for _, b := range s.more {
		b.unref()
	}
}

// keep makes what was changed final: nothing is put back any more, and what was freed is forgotten.
func (h *Handle) keep() {
	for _, s := range h.steps {
		h.release(s)
	}
	h.steps = nil
	for _, b := range h.forgotten {
		h.forget(b)
	}
	h.forgotten = nil
}
