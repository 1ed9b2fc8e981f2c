package share

import (
	"sync/atomic"

	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// Moved is what rings have moved, by the memory of programs that it went to or came from.
type Moved struct {
	Device Count `json:"device"` // memory of the runtime's kind: with a GPU, its own
	Stage  Count `json:"stage"`  // ordinary memory, though the mount has a GPU. The program moves it on
	Copied Count `json:"copied"` // a GPU's memory that the drive does not reach: through the pool's stage, by the daemon's copy engine
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
type moved struct{ device, stage, copied counter }

func (m *moved) read() Moved { return Moved{m.device.read(), m.stage.read(), m.copied.read()} }

// add counts the jobs of a batch, of which results are what became of them.
func (m *moved) add(b []job, results []int64) {
	var counts [3]Count
	for i := range b {
		if j := &b[i]; j.mem != nil && results[i] >= 0 {
			c := &counts[0]
			switch {
			case j.stage:
				c = &counts[1]
			case j.mem.Staged():
				c = &counts[2]
			}
			c.Requests++
			c.Bytes += results[i]
		}
	}
	for i, to := range []*counter{&m.device, &m.stage, &m.copied} {
		if counts[i].Requests > 0 {
			to.requests.Add(counts[i].Requests)
			to.bytes.Add(counts[i].Bytes)
		}
	}
}

// Moved returns what rings have moved since the server began.
func (s *Server) Moved() Moved { return s.moved.read() }

// howMoved answers a client.
func (c *conn) howMoved(_ *wire.Moved, _ []gate.Right) result {
	m := c.moved.read()
	r := &wire.MovedReply{Device: m.Device.wire(), Stage: m.Stage.wire(), Copied: m.Copied.wire()}
	if why := c.pool.Unreached(); why != nil {
		r.Flags, r.Why = wire.MovedUnreached, wire.Text(why.Error())
	}
	return result{reply: r}
}

func (c Count) wire() wire.MovedCount {
	return wire.MovedCount{Requests: uint64(c.Requests), Bytes: uint64(c.Bytes)}
}
