package share

import "sync/atomic"

// places are for workers beyond the first of each ring: as many as all rings together may have. A ring that finds none free gets that of a worker
// of another ring that has nothing to do: else programs that had much to do once would keep all of them for as long as they live.
type places struct {
	taken   chan struct{} // an element for each
	wanted  chan struct{} // a worker that receives from it, with nothing to do, has given its place away and ends
	threads atomic.Int32  // workers that wait as threads: see queue
}

func newPlaces(n int) *places {
	return &places{taken: make(chan struct{}, n), wanted: make(chan struct{})}
}

// take says whether there is a place. It does not wait.
func (p *places) take() bool {
	select {
	case p.taken <- struct{}{}:
		return true
	default:
	}
	select {
	case p.wanted <- struct{}{}:
		return true
	default:
		return false
	}
}

// give gives n places back.
func (p *places) give(n int) {
	for range n {
		<-p.taken
	}
}
