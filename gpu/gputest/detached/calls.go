package detached

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Calls are those of a driver, by their kinds, which a test names as it likes. Of some kinds they do not return until they are let go of. Then they do what they were to do.
type Calls struct {
	mu    sync.Mutex
	kinds []string      // protected by mu: of calls that stick
	until chan struct{} // protected by mu: closed when they are let go of
	stuck atomic.Int64
}

// Stick has calls of these kinds stick that begin from now on, until LetGo.
func (c *Calls) Stick(kinds ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds, c.until = kinds, make(chan struct{})
}

// LetGo has all calls return. Repeated calls do nothing.
func (c *Calls) LetGo() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds != nil {
		c.kinds = nil
		close(c.until)
	}
}

// Stuck is how many calls stick now.
func (c *Calls) Stuck() int64 { return c.stuck.Load() }

// Sticks says whether calls of a kind stick that begin now.
func (c *Calls) Sticks(kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.kinds, kind)
}

// Call comes before what a call of that kind does.
func (c *Calls) Call(kind string) {
	c.mu.Lock()
	until, sticks := c.until, slices.Contains(c.kinds, kind)
	if sticks {
		c.stuck.Add(1)
	}
	c.mu.Unlock()
	if sticks {
		<-until
		c.stuck.Add(-1)
	}
}
