package residency

import (
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// Hold is one client's use of memory. The client calls Release once.
type Hold struct {
	p      *Pool
	r      *fileRange
	notify func(generation uint64)
	waker  Waker
}

// Memory returns the memory that is held.
func (h *Hold) Memory() *Memory { return h.r.mem }

// Offset returns the offset in the memory of byte off of the file. For memory from Alloc it is off.
func (h *Hold) Offset(off int64) int64 { return off - h.r.off }

// Generation returns the generation at which the bytes were read.
func (h *Hold) Generation() uint64 { return h.r.gen }

// latest returns the present generation of the file's range.
func (h *Hold) latest() uint64 {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	return h.r.now
}

// current reports whether no change has touched the range since it was read.
func (h *Hold) current() bool { return h.latest() == h.r.gen }

// Export returns a descriptor of the memory. Shared memory is exported read-only where the runtime can. gone is as for Pool.Alloc: a call that
// was given up has a hold of its own.
func (h *Hold) Export(gone <-chan struct{}) (gpu.Export, error) {
	own := &Hold{p: h.p, r: h.r}
	h.p.mu.Lock()
	h.r.holds[own] = true
	h.p.mu.Unlock()
	e, _, err := await(h.p.c.Failed, gone, func() (gpu.Export, error) {
		defer own.Release()
		return h.r.mem.export(h.p.exports, !h.Shared())
	}, func(e gpu.Export) {
		if e.FD > 0 {
			_ = unix.Close(e.FD)
		}
	})
	return e, err
}

// Shared reports whether other holds may share the memory.
func (h *Hold) Shared() bool { return h.r.key != Key{} }

// Release ends the hold. It panics if it is called twice.
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
	if r.listed && r.gen == r.now && !p.closed {
		r.idle = p.idle.PushBack(r)
		p.mu.Unlock()
		return
	}
	p.dropLocked(r)
	p.mu.Unlock()
	if r.mem != nil {
		_ = r.mem.close() // nothing can be done about an error: the memory is lost
	}
}
