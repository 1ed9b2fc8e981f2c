package jbd2

import "sync"

// What a handle can take back. An operation that fails after its first change has three ends to choose from: go on to its
// own end, put everything back (Undo), or stop the journal before any of it can be committed (Journal.Fail). Undo puts back
//
//   - blocks that only this operation may change, from a copy of the whole block: Save, before the first change;
//   - new blocks, which leave the transaction: Created;
//   - its own part of blocks that other handles change meanwhile, such as a bit of a bitmap: DirtyShared, and a function
//     given to OnUndo that makes the opposite change in memory, or for a part that nobody else changes a copy: SavePart.
//
// A change that was announced in none of these ways can't be taken back, and Undo says so.

// undoStep is one thing to be put back.
type undoStep struct {
	f     func()  // nil: restore image, or take a new block out
	buf   *Buffer // referenced, where it is not nil
	image *[]byte // of buf, or of the part of need, before the first change; nil for a new block
	need  *Buffer // referenced, where it is not nil: what f needs in memory, or that of the next step
	part  Part    // of need; nil if image is that of buf
	off   int     // of the part in need
}

// Part hears that Undo has put a part of a block back. The block's lock is held.
type Part interface{ PutBack(part []byte) }

// images and parts are memory for whole blocks and for parts of them.
var (
	images = sync.Pool{New: func() any { return new([]byte) }}
	parts  = sync.Pool{New: func() any { return new([]byte) }}
)

// undoMemory is what a handle notes for Undo. It is used again, for most operations change some ten blocks.
type undoMemory struct {
	steps []undoStep           // what Undo does, latest last
	saved map[*Buffer]struct{} // Save or Created announced them
}

var undoMemories = sync.Pool{New: func() any { return &undoMemory{saved: map[*Buffer]struct{}{}} }}

// undoKept is for how many steps memory is kept: what a truncation of many extents takes is not.
const undoKept = 64

// notes is the handle's undoMemory.
func (h *Handle) notes() *undoMemory {
	if h.undo == nil {
		h.undo = undoMemories.Get().(*undoMemory)
	}
	return h.undo
}

// announced says whether Save or Created announced b.
func (h *Handle) announced(b *Buffer) bool {
	if h.undo == nil {
		return false
	}
	_, ok := h.undo.saved[b]
	return ok
}

// Save keeps a copy of what b holds, for Undo. It is called before the first change of a block that no other
// operation may change or dirty until the handle has ended. A second call for one block does nothing.
func (h *Handle) Save(b *Buffer) {
	h.live()
	if h.announced(b) {
		return
	}
	p := images.Get().(*[]byte)
	*p = append((*p)[:0], b.data...)
	h.announce(undoStep{buf: b, image: p})
}

// Created says that b is a block which was allocated under this handle: Undo takes it out of the transaction and out of the
// cache, since the block is free again then.
func (h *Handle) Created(b *Buffer) {
	h.live()
	if h.announced(b) {
		return
	}
	h.announce(undoStep{buf: b})
}

func (h *Handle) announce(s undoStep) {
	u := h.notes()
	s.buf.ref()
	u.saved[s.buf] = struct{}{}
	u.steps = append(u.steps, s)
}

// OnUndo has f called by Undo, after the functions and copies that come later. f must not fail or wait for I/O: what it needs of
// the cache is in bufs, which stay in memory until the handle ends.
func (h *Handle) OnUndo(f func(), bufs ...*Buffer) {
	h.live()
	u, s := h.notes(), undoStep{f: f}
	for k, b := range bufs {
		b.ref()
		if s.need = b; k < len(bufs)-1 {
			u.steps = append(u.steps, undoStep{need: b})
		}
	}
	u.steps = append(u.steps, s)
}

// SavePart keeps a copy of n bytes of b from off on, for Undo: a part that no other operation changes until the handle has ended, but for
// what p then puts right. Each call has a copy of its own. It takes the block's lock: others may be in the middle of such a change.
func (h *Handle) SavePart(b *Buffer, off, n int, p Part) {
	h.live()
	image := parts.Get().(*[]byte)
	b.RLock()
	*image = append((*image)[:0], b.data[off:off+n]...)
	b.RUnlock()
	b.ref()
	u := h.notes()
	u.steps = append(u.steps, undoStep{image: image, need: b, part: p, off: off})
}

// DirtyShared is Dirty for a block that other handles change at the same time, each a part of its own. The caller takes
// the change back by OnUndo, or may leave it as it is.
func (h *Handle) DirtyShared(b *Buffer) { h.dirty(b) }

// Undo puts back what was changed under the handle, latest first. It reports false if there was a change that it can't put
// back: then the journal must not commit this transaction. The handle is still to be ended.
func (h *Handle) Undo() bool {
	h.live()
	h.forgotten = nil
	for u := h.notes(); len(u.steps) > 0; { // f may dirty blocks, and add no steps
		k := len(u.steps) - 1
		s := u.steps[k]
		u.steps = u.steps[:k]
		switch {
		case s.f != nil:
			s.f()
		case s.part != nil:
			s.need.Lock()
			b := s.need.data[s.off : s.off+len(*s.image)]
			copy(b, *s.image)
			s.part.PutBack(b)
			h.DirtyShared(s.need)
			s.need.Unlock()
		case s.image != nil:
			s.buf.Lock()
			copy(s.buf.data, *s.image)
			s.buf.Unlock()
		case s.buf != nil:
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
	switch {
	case s.part != nil:
		parts.Put(s.image)
	case s.image != nil:
		images.Put(s.image)
	}
	if s.buf != nil {
		delete(h.undo.saved, s.buf)
		s.buf.unref()
	}
	if s.need != nil {
		s.need.unref()
	}
}

// keep makes what was changed final: nothing is put back any more, and what was freed is forgotten.
func (h *Handle) keep() {
	if u := h.undo; u != nil {
		for _, s := range u.steps {
			h.release(s)
		}
		h.undo = nil
		if cap(u.steps) <= undoKept {
			clear(u.steps[:cap(u.steps)])
			u.steps = u.steps[:0]
			undoMemories.Put(u)
		}
	}
	for _, b := range h.forgotten {
		h.forget(b)
	}
	h.forgotten = nil
}
