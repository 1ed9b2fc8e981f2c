package residency

import "github.com/lanefs/lanefs/gpu"

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

// Pin keeps what is resident of a file now or later from being evicted, or lets it go again.
func (p *Pool) Pin(k Key, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if on {
		p.pinned[k] = true
	} else {
		delete(p.pinned, k)
	}
}

// Resident describes one range for `lanefs vram ls`.
type Resident struct {
	Name       string `json:"name"` // by which it was asked for first
	Ino        uint32 `json:"inode"`
	Off        int64  `json:"offset"`
	Bytes      int64  `json:"bytes"`
	Memory     int64  `json:"memory"` // bytes that it takes of the pool
	Generation uint64 `json:"generation"`
	Latest     uint64 `json:"latest"` // the file's own generation now; another one than Generation: stale
	Holders    int    `json:"holders"`
	Pinned     bool   `json:"pinned"`
}

// Stats describes the pool.
type Stats struct {
	Size      int64      `json:"size"`
	Used      int64      `json:"used"`
	Loads     int64      `json:"loads"`  // ranges that were read
	Loaded    int64      `json:"loaded"` // bytes of them
	Shared    int64      `json:"shared"` // requests that found their range resident
	Evicted   int64      `json:"evicted"`
	Residents []Resident `json:"residents"`
}

// Stats is a snapshot.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Size: p.c.Size, Used: p.used, Loads: p.count.loads, Loaded: p.count.loaded, Shared: p.count.shared, Evicted: p.count.evicted,
		Residents: []Resident{}}
	for ino, of := range p.files {
		for r := range of {
			s.Residents = append(s.Residents, Resident{r.name, ino, r.off, r.n, r.size, r.gen, r.now, len(r.holds), p.pinned[r.key]})
		}
	}
	return s
}

// Close frees what nobody holds. Holds that are left free theirs as they are released.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	var all []*fileRange
	for p.idle.Len() > 0 {
		r := p.idle.Front().Value.(*fileRange)
		p.dropLocked(r)
		all = append(all, r)
	}
	p.mu.Unlock()
	for _, r := range all {
		_ = r.mem.close()
	}
	return nil
}
