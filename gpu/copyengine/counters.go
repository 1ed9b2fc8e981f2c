package copyengine

import (
	"sync/atomic"
	"time"
)

// Count counts copies and their bytes.
type Count struct {
	Copies uint64 `json:"copies"`
	Bytes  uint64 `json:"bytes"`
}

// Counters says which way copies went.
type Counters struct {
	Kernel   Count         `json:"kernel"`              // small ones together, by Launches of a kernel
	Launches uint64        `json:"launches"`            // of it
	Single   Count         `json:"single"`              // small ones by the copy engine, each for itself
	Late     uint64        `json:"late"`                // of these, because the kernel answered late
	Large    Count         `json:"large"`               // by the copy engine, where a kernel would be no faster
	LateBy   time.Duration `json:"late_by,omitempty"`   // how late the kernel is now, in ns; 0: in time
	NoKernel string        `json:"no_kernel,omitempty"` // why there is none, if that is an error
}

// Counters reads them.
func (e *Engine) Counters() Counters {
	c := Counters{Kernel: e.small.read(), Launches: e.launches.Load(), Single: e.single.read(), Large: e.large.read()}
	if g := e.gather; g != nil {
		c.Late, c.LateBy = g.lates.Load(), time.Duration(g.late.Load())
	}
	if e.noGather != nil {
		c.NoKernel = e.noGather.Error()
	}
	return c
}

type counter struct{ copies, bytes atomic.Uint64 }

func (c *counter) add(n, bytes int) {
	c.copies.Add(uint64(n))
	c.bytes.Add(uint64(bytes))
}

func (c *counter) read() Count { return Count{c.copies.Load(), c.bytes.Load()} }
