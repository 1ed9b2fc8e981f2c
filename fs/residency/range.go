package residency

import (
	"container/list"
)

// Key names a file's bytes for those who may share them.
type Key struct {
	Ino, Generation uint32
	// Owner is the user among whose programs memory is shared that readers could write to. Pool.Key sets it.
	Owner uint32
}

// fileRange is resident bytes of a file. What is not said to be fixed is protected by Pool.mu.
type fileRange struct {
	key    Key // fixed, as are name, off and n
	name   string
	off    int64 // in the file
	n      int64
	end    int64 // changes before it touch the range; further than off+n for one that goes to the end of the file
	size   int64 // of the memory
	mem    *Memory
	gen    uint64 // that it was read at
	now    uint64 // that it would be read at now
	holds  map[*Hold]bool
	idle   *list.Element
	listed bool          // in files
	ready  chan struct{} // closed when mem or err is there
	err    error         // of the load; fixed once ready
}

// unlistLocked takes r out of the books: no new hold finds it, no change is told to it.
func (p *Pool) unlistLocked(r *fileRange) {
	if !r.listed {
		return
	}
	r.listed = false
	delete(p.files[r.key.Ino], r)
	if len(p.files[r.key.Ino]) == 0 {
		delete(p.files, r.key.Ino)
	}
}

// dropLocked forgets a range that nobody holds; the caller closes its memory.
func (p *Pool) dropLocked(r *fileRange) {
	if r.idle != nil {
		p.idle.Remove(r.idle)
		r.idle = nil
	}
	p.unlistLocked(r)
	p.used -= r.size
}
