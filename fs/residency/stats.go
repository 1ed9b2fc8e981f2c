package residency

// Resident describes one range.
type Resident struct {
	Name       string `json:"name"` // of the file, as it was first mapped
	Ino        uint32 `json:"inode"`
	Off        int64  `json:"offset"`
	Bytes      int64  `json:"bytes"`
	Read       int64  `json:"read"`   // bytes of it that are read: fewer than Bytes while it is loaded
	Memory     int64  `json:"memory"` // bytes of the pool that it takes
	Generation uint64 `json:"generation"`
	Latest     uint64 `json:"latest"` // the present generation; the range is stale if Generation differs
	Holders    int    `json:"holders"`
	Pinned     bool   `json:"pinned"`
}

// Stats describes the pool.
type Stats struct {
	Size      int64      `json:"size"`
	Used      int64      `json:"used"`
	Loads     int64      `json:"loads"`  // ranges read
	Loaded    int64      `json:"loaded"` // bytes read
	Shared    int64      `json:"shared"` // calls of Map that found their range resident
	Evicted   int64      `json:"evicted"`
	Residents []Resident `json:"residents"`
	// Unreached is why the drive does not reach the pool's memory, empty if it does; Staged is how many bytes went through the stage.
	Unreached string `json:"unreached,omitempty"`
	Staged    int64  `json:"staged"`
}

// Stats returns a snapshot.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{Size: p.c.Size, Used: p.used, Loads: p.count.loads, Loaded: p.count.loaded, Shared: p.count.shared, Evicted: p.count.evicted,
		Residents: []Resident{}, Staged: p.staged.Load()}
	if p.unreached != nil {
		s.Unreached = p.unreached.Error()
	}
	for ino, of := range p.files {
		for r := range of {
			s.Residents = append(s.Residents, Resident{r.name, ino, r.off, r.n, r.readLocked(), r.size, r.gen, r.now, len(r.holds), p.pinned[r.key]})
		}
	}
	return s
}

// Left is how many bytes of memory, programs' and the pool's, are never given back: the GPU has failed, or a copy hangs, and the device may use them yet.
func (p *Pool) Left() int64 { return p.left.Load() }
