package controller

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// The failover: when the runtime that runs the lanes has failed (a kernel hangs, does not start, or the device is lost), and not
// the controller, the lanes move to a spare runtime.
//
//  1. Abandon: every lane is told to fail, so that a kernel that runs on posts nothing more.
//  2. The controller is disabled. From then on it accesses no memory: every command that was under way has ended.
//  3. The spare runtime is opened, and the controller is enabled again.
//  4. Move: the lanes get memory and kernels of the spare runtime. Memory of the old one is not used or freed as long as a kernel
//     may still run on it, and the queue pairs get other identifiers, whose doorbells the old kernels do not have.
//  5. Resume: commands that had not ended are sent again, except a Flush whose result was lost (durable.go) and, with
//     Config.SpareReads, those that write.
//
// Data stays where it is, which must not be the GPU's own memory: that the CPU has a view of it, as with a large BAR, does not make it
// last longer than the GPU.

// RuntimeError is a failure of the runtime that runs the lanes, not of the controller.
type RuntimeError struct{ Err error }

func (e RuntimeError) Error() string { return e.Err.Error() }
func (e RuntimeError) Unwrap() error { return e.Err }

// Failover says that the lanes have moved to the spare runtime, and why.
type Failover struct {
	When     time.Time
	Why      string
	From, To string // the runtimes' names
	ReadOnly bool   // commands that write are refused since
}

// Failover is nil as long as Config.Runtime runs the lanes.
func (c *Controller) Failover() *Failover { return c.failover.Load() }

// RuntimeFailed says that Config.Runtime has failed. Its Close may wait for ever then, for a kernel that hangs.
func (c *Controller) RuntimeFailed() bool { return c.runtimeFailed.Load() }

// hasFailed says that rt has failed, or that it is a GPU beside one that has: which of several it was is not asked. Its memory is never freed:
// the call could wait for ever, and a kernel may still use it.
func (c *Controller) hasFailed(rt gpu.Runtime) bool {
	return c.runtimeFailed.Load() && (rt == c.cfg.Runtime || rt != nil && !rt.Facts().CallerDriven)
}

// AlsoRuns says that rt runs lanes, too, beside Config.Runtime.
func (c *Controller) AlsoRuns(rt gpu.Runtime) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.more = append(c.more, rt)
}

// LeaveRuntime has the lanes move since a GPU has failed, unless they have moved: for what finds that without a lane, whose own calls would take longer to.
func (c *Controller) LeaveRuntime(why error) {
	gen := c.Generation() // before it is looked: the lanes may move meanwhile
	if !c.runtimeFailed.Load() {
		c.Recover(gen, RuntimeError{why})
	}
}

// checkRuntimes has the lanes move when a GPU is lost to this process. Lanes to which no request goes find that out never, and what they hold of the device is held until
// they have moved or the process ends.
func (c *Controller) checkRuntimes() {
	c.mu.Lock()
	all := append([]gpu.Runtime{c.cfg.Runtime}, c.more...)
	c.mu.Unlock()
	for _, rt := range all {
		if l, ok := rt.(gpu.Losable); ok {
			if err := l.Lost(); err != nil {
				c.LeaveRuntime(err)
				return
			}
		}
	}
}

// endWait is how long kernels that were told to fail may take to end.
const endWait = 2 * time.Second

// failOver moves every lane to the spare runtime. Its error says why they were to move, too. The caller holds resetMu and every queue pair.
func (c *Controller) failOver(queues []Queues, why RuntimeError) error {
	from := c.Runtime()
	c.runtimeFailed.Store(true)
	for _, q := range queues {
		q.Abandon()
	}
	switch {
	case c.cfg.Spare == nil:
		return fmt.Errorf("%w; no other runtime can run the lanes", why)
	case c.failover.Load() != nil:
		return fmt.Errorf("%w; the lanes had moved before", why)
	case c.dataOnGPU.Load():
		return fmt.Errorf("%w; data is in the memory of the GPU that failed", why)
	}
	if err := c.stop(); err != nil {
		return fmt.Errorf("%w; stopping the controller: %w", why, err)
	}
	to, err := c.cfg.Spare()
	if err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	ended := haveEnded(queues)
	c.log.Error("the lanes have failed and move", "device", c.t.Name(), "from", from.Name(), "to", to.Name(), "why", why.Error(),
		"read-only", c.cfg.SpareReads)
	c.dropBAR(ended)
	c.rt.Store(&to)
	c.failover.Store(&Failover{When: time.Now(), Why: why.Error(), From: from.Name(), To: to.Name(), ReadOnly: c.cfg.SpareReads})
	c.copies.Forget()
	err = c.bringUp()
	for i := 0; i < len(queues) && err == nil; i++ {
		err = queues[i].Move(ended)
	}
	if err != nil {
		return fmt.Errorf("%w; moving the lanes to %s: %w", why, to.Name(), err)
	}
	c.log.Warn("memory of the runtime that has failed is left until the process ends", "device", c.t.Name(), "bytes", c.LeftMemory())
	return nil
}

// haveEnded says whether no kernel runs on any lane, or ever will: all launches have ended, or the device is lost.
func haveEnded(queues []Queues) bool {
	var w poll.Waiter
	for waited := (nap.Wait{}); ; w.Idle() {
		all := true
		for _, q := range queues {
			all = q.Ended() && all
		}
		if all || waited.Over(endWait) {
			return all
		}
	}
}

// Quiesced runs f, which may wait for the device, while no resident kernel of the controller's lanes runs.
func (c *Controller) Quiesced(f func() error) error {
	if c.Runtime().Facts().CallerDriven {
		return f()
	}
	for _, q := range c.queuePairs() {
		inner := f
		f = func() error { return q.Quiesced(inner) }
	}
	return f()
}

// Limits of what may hang once a runtime has failed: to unmap memory may be a call of its driver's, which no one answers. unmapLeft is for each when one has
// not ended within unmapWait, so that a device with much memory is closed all the same.
const (
	unmapWait = 2 * time.Second
	unmapLeft = 10 * time.Millisecond
)

// unmap is the transport's Unmap. Once a runtime has failed it is left behind when it hangs: ended is false then, the memory may be mapped yet and is not freed. The
// first is logged.
func (c *Controller) unmap(at nvme.IOVA) (ended bool, err error) {
	if !c.runtimeFailed.Load() {
		return true, c.t.Unmap(at)
	}
	wait := unmapWait
	if c.unmapHangs.Load() {
		wait = unmapLeft
	}
	_, end, err := calls.Make(calls.Wait{Limit: wait}, func() (struct{}, error) { return struct{}{}, c.t.Unmap(at) }, nil)
	if end == calls.Returned {
		return true, err
	}
	if !c.unmapHangs.Swap(true) {
		c.log.Warn("a runtime has failed, and unmapping memory hangs: it is left mapped until the process ends", "device", c.t.Name(), "after", unmapWait)
	}
	return false, nil
}

// memoryCall is Quiesced for a call that allocates or frees n bytes of rt, a GPU's above all. It may not return: once a runtime has failed it is left behind, as what hangs in unmap
// is, and the memory with it. f has until then what it uses to itself; it is not called if it has not been by then.
func (c *Controller) memoryCall(rt gpu.Runtime, n int64, f func() error) error {
	if rt.Facts().CallerDriven {
		return c.Quiesced(f)
	}
	var state atomic.Int32 // 1: f was called; 2: it is not called any more
	_, end, err := calls.Make(calls.Wait{Limit: unmapWait, Step: memoryLook, Spent: calls.While(c.runtimeFailed.Load)}, func() (struct{}, error) {
		return struct{}{}, c.Quiesced(func() error {
			if !state.CompareAndSwap(0, 1) {
				return errMemoryCall
			}
			return f()
		})
	}, nil)
	if end == calls.Returned {
		return err
	}
	state.CompareAndSwap(0, 2)
	c.LeaveMemory(n)
	c.log.Warn("a runtime has failed, and a call of its driver for memory does not return: it is left until the process ends", "device", c.t.Name(), "bytes", n, "after", unmapWait)
	return errMemoryCall
}

// freeMemory closes memory of rt. What the driver of a GPU that hangs does not free is left.
func (c *Controller) freeMemory(rt gpu.Runtime, m gpu.Memory) error {
	err := c.memoryCall(rt, m.Size(), m.Close)
	if errors.Is(err, calls.ErrHangs) {
		c.LeaveMemory(m.Size())
		return nil
	}
	return err
}

// memoryLook is how often it is looked whether a runtime has failed.
const memoryLook = 100 * time.Millisecond

var errMemoryCall = errors.New("the GPU has failed, and a call of its driver does not return")

// LeaveMemory counts n bytes that are never freed: a kernel or a call of a runtime that has failed may use them yet. LeftMemory is how many there are, in bytes, at most.
func (c *Controller) LeaveMemory(n int64) { c.leftMemory.Add(n) }
func (c *Controller) LeftMemory() int64   { return c.leftMemory.Load() }

// FailRuntime notes that Config.Runtime has failed.
func (c *Controller) FailRuntime() { c.runtimeFailed.Store(true) }
