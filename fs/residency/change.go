package residency

// Waker is somebody who waits for changes. It may be woken after its hold was released, so it must bear that.
type Waker interface{ Signal() }

// Changed says that bytes [off, end) of inode ino are others now. It returns when every holder has been told.
func (p *Pool) Changed(ino uint32, off, end int64) {
	p.mu.Lock()
	of := p.files[ino]
	if len(of) == 0 || off >= end {
		p.mu.Unlock()
		return
	}
	p.gen++
	var drop []*fileRange
	wake := map[Waker]bool{}
	for r := range of {
		if off >= r.end || end <= r.off {
			continue
		}
		r.now = p.gen
		for h := range r.holds {
			if h.notify != nil {
				h.notify(p.gen)
			}
			if h.waker != nil {
				wake[h.waker] = true
			}
		}
		if len(r.holds) == 0 {
			drop = append(drop, r)
			p.dropLocked(r)
		}
	}
	p.mu.Unlock()
	for w := range wake {
		w.Signal()
	}
	for _, r := range drop {
		_ = r.mem.close() // its memory is lost to us either way
	}
}
