package residency

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
