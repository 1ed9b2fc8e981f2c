package share

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/gate"
	"github.com/lanefs/lanefs/fs/share/wire"
)

// brief is how long a request for a brief release waits all the same: most releases end sooner, those of rings in a few wake-ups.
const brief = 10 * time.Millisecond

// release takes a handle's name away: from the connection's later requests, and from what is put into rings later. Beside the connection's requests it then waits for those of
// rings that use it, also those that are put in and not taken yet, and closes it. How long the answer waits for that the client says, whose later requests wait for the answer.
func (c *conn) release(q *wire.Release, _ []gate.Right) result {
	var done <-chan struct{}
	if q.Flags&wire.ReleaseAsk != 0 {
		c.mu.Lock()
		done = c.releasing[q.Handle]
		c.mu.Unlock()
		if done == nil {
			return result{}
		}
	} else if done = c.beginRelease(q.Handle); done == nil {
		return fail(fmt.Errorf("handle %d does not exist: %w", q.Handle, unix.EBADF))
	}
	if q.Flags == 0 {
		<-done
		return result{}
	}
	late := time.NewTimer(brief)
	defer late.Stop()
	select {
	case <-done:
		return result{}
	case <-late.C:
		return fail(fmt.Errorf("handle %d is released once the requests that use it have ended: %w", q.Handle, unix.EINPROGRESS))
	}
}

// beginRelease releases a handle. What it returns, nil if there is no such handle, is closed when that is done, and the number free.
func (c *conn) beginRelease(number uint32) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.handles[number]; !ok {
		return nil
	}
	o := c.takeLocked(number)
	var busy []func()
	for r := range c.rings {
		if wait := r.removeHandle(number); wait != nil {
			busy = append(busy, wait)
		}
	}
	done := make(chan struct{})
	c.releasing[number] = done
	c.ending.Go(func() {
		for _, wait := range busy {
			wait()
		}
		c.end(o)
		c.word(number).Store(0)
		c.mu.Lock()
		c.count[o.kind()]--
		delete(c.releasing, number)
		if c.gone.Load() {
			c.endUnusedLocked() // what a ring's requests have used
		}
		c.mu.Unlock()
		close(done)
	})
	return done
}
