package residency

// Waker is signalled after changes. Signal must not block. It may be called after the hold was released.
type Waker interface{ Signal() }

// Changed records that bytes [off, end) of inode ino have changed. When it returns, all holds that it concerns were notified.
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
	p.free(drop)
}
