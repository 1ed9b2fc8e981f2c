package residency

import (
	"container/list"
)

// Key identifies a file. Ranges are shared by programs with equal keys.
type Key struct {
	Ino, Generation uint32
	// Owner is the user whose programs share the memory, if the runtime has no read-only exports; else 0. Pool.Key sets it.
	Owner uint32
}

// fileRange is a resident range of a file. Fields are protected by Pool.mu unless they are fixed.
type fileRange struct {
	key    Key // fixed, as are name, off and n
	name   string
	off    int64 // in the file
	n      int64
	end    int64   // changes before this offset touch the range: off+n, or MaxInt64 if it goes to the end of the file
	size   int64   // of the memory
	mem    *Memory // nil before the load has some
	gen    uint64  // the generation at which it was read
	now    uint64  // the present generation of its bytes
	holds  map[*Hold]bool
	idle   *list.Element
	listed bool          // in files
	ready  chan struct{} // closed when mem has the bytes, or err is set
	err    error         // of the load; fixed once ready
}

// readLocked is how many of its bytes are read.
func (r *fileRange) readLocked() int64 {
	if r.mem == nil {
		return 0
	}
	return r.mem.read.Load()
}

// unlistLocked removes r from the tables: enter does not find it, and Changed does not see it.
func (p *Pool) unlistLocked(r *fileRange) {
	r.listed = false
	delete(p.files[r.key.Ino], r)
	if len(p.files[r.key.Ino]) == 0 {
		delete(p.files, r.key.Ino)
	}
}

// dropLocked removes a range without holds. The caller closes its memory.
func (p *Pool) dropLocked(r *fileRange) {
	if r.idle != nil {
		p.idle.Remove(r.idle)
		r.idle = nil
	}
	p.unlistLocked(r)
	p.used -= r.size
}
