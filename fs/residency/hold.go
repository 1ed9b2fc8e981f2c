package residency

import "github.com/lanefs/lanefs/gpu"

// Hold is one client's use of memory. Its owner calls Release once.
type Hold struct {
	p      *Pool
	r      *fileRange
	notify func(generation uint64)
	waker  Waker
}

// Memory is the memory that is held.
func (h *Hold) Memory() *Memory { return h.r.mem }

// Offset is where byte off of the file is in the memory; for memory of its own, off itself.
func (h *Hold) Offset(off int64) int64 { return off - h.r.off }

// Generation is the one at which the bytes were read.
func (h *Hold) Generation() uint64 { return h.r.gen }

// latest is the generation of the file's range now.
func (h *Hold) latest() uint64 {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	return h.r.now
}

// current says whether no change has touched the range since it was read.
func (h *Hold) current() bool { return h.latest() == h.r.gen }

// Export hands out a descriptor of the memory, writable only for who has it to himself.
func (h *Hold) Export() (gpu.Export, error) {
	return h.r.mem.export(h.p.exports, !h.Shared())
}

// Shared says whether others may hold the same memory.
func (h *Hold) Shared() bool { return h.r.key != Key{} }

// Release ends the hold.
func (h *Hold) Release() {
	p, r := h.p, h.r
	p.mu.Lock()
	if !r.holds[h] {
		p.mu.Unlock()
		panic("residency: hold released twice")
	}
	delete(r.holds, h)
	if len(r.holds) > 0 {
		p.mu.Unlock()
		return
	}
	if r.listed && r.gen == r.now && r.err == nil && !p.closed {
		r.idle = p.idle.PushBack(r)
		p.mu.Unlock()
		return
	}
	p.dropLocked(r)
	p.mu.Unlock()
	if r.mem != nil {
		_ = r.mem.close() // its memory is lost to us either way
	}
}
