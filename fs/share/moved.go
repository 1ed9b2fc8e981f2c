package share

import "sync/atomic"

// Moved is what rings have moved, by the memory of programs that it went to or came from.
type Moved struct {
	Device Count `json:"device"` // memory of the runtime's kind: with a GPU, its own
	Stage  Count `json:"stage"`  // ordinary memory, though the mount has a GPU. The program moves it on
}

// Count counts requests that succeeded, and their bytes.
type Count struct {
	Requests int64 `json:"requests"`
	Bytes    int64 `json:"bytes"`
}

// counter is a Count that many goroutines add to.
type counter struct{ requests, bytes atomic.Int64 }

func (c *counter) read() Count { return Count{c.requests.Load(), c.bytes.Load()} }

// moved counts for Moved.
type moved struct{ device, stage counter }

// add counts the jobs of a batch, of which results are what became of them.
func (m *moved) add(b []job, results []int64) {
	var counts [2]Count
	for i := range b {
		if j := &b[i]; j.mem != nil && results[i] >= 0 {
			c := &counts[0]
			if j.stage {
				c = &counts[1]
			}
			c.Requests++
			c.Bytes += results[i]
		}
	}
	for i, to := range []*counter{&m.device, &m.stage} {
		if counts[i].Requests > 0 {
			to.requests.Add(counts[i].Requests)
			to.bytes.Add(counts[i].Bytes)
		}
	}
}

// Moved returns what rings have moved since the server began.
func (s *Server) Moved() Moved { return Moved{s.moved.device.read(), s.moved.stage.read()} }
