package copyengine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/kernels"
)

// Engine is a Mover, Stager and Piper over a runtime's copies. Several copies run at once, each on a stream of its own.
//
// A copy engine reads and writes pinned memory: memory from Stage, or given to Pin. Bytes from elsewhere go through a stream's own bounce
// buffer.
type Engine struct {
	rt     gpu.Runtime
	all    []*stream
	idle   chan *stream // those that are not in use
	mu     sync.Mutex
	spare  [][]byte              // protected by mu: given back by Unstage
	index  atomic.Pointer[index] // all stages, and what was pinned. Each change, with mu held, makes a new one
	unpins sync.WaitGroup
	beside []*Engine // of other GPUs: what they have pinned can be copied from and to as well (Several)

	gather   *gatherer // nil: there is no such kernel, or the CPU does it
	noGather error     // why

	*watch // of all calls of the driver, but those of New and Pin, which are the runtime's to bound (gpu/bounded)

	left atomic.Int64 // Left, but for what is counted once copies are stuck

	large, small, single counter // Counters
	launches             atomic.Uint64
	traffic              traffic
	turns                turns
}

// stream is what one user has at a time. Its hand makes the calls of the driver; only that touches what is marked so.
type stream struct {
	gpu.Stream // the hand's
	hand       *hand
	bounce     gpu.Memory
	list       *list                 // nil where there is no gatherer
	end        mark                  // of what was begun
	begun      int64                 // bytes of copies since the last await
	launched   bool                  // some of them by a launch
	ended      int64                 // traffic.ended at the first launch since the last await
	small      []kernels.GatherPiece // a pipe's, kept for the next one
}

const (
	streams    = 12 // with a resident kernel for each of 16 lanes fewer than the 32 hardware connections of an NVIDIA device
	bounceSize = 256 << 10
	markSize   = 64 // a cache line, behind it
)

// copyTimeout is how long a copy may take; tests shorten it.
var copyTimeout = 30 * time.Second

// New makes an engine of rt. The caller closes it, before the runtime.
func New(rt gpu.Runtime) (*Engine, error) {
	e := &Engine{rt: rt, idle: make(chan *stream, streams), turns: make(turns, turnsAtOnce), watch: newWatch()}
	if !rt.Facts().CallerDriven { // there the CPU copies, and needs no kernel for it
		e.gather, e.noGather = newGatherer(rt, &e.traffic, e.watch)
	}
	for range streams {
		c := &stream{}
		var err error
		if c.Stream, err = rt.NewStream(); err == nil {
			c.hand = newHand(e.watch)
			c.Stream = handed{c.Stream, c.hand.call}
			e.all = append(e.all, c)
			c.bounce, err = rt.Alloc(gpu.HostMapped, bounceSize+markSize)
		}
		if err == nil {
			c.end = newMark(c.Stream, c.bounce, bounceSize)
		}
		if err == nil && e.gather != nil {
			c.list, err = newList(rt)
		}
		if err != nil {
			err = fmt.Errorf("copy engine of %s: %w", rt.Name(), err)
			if errors.Is(err, calls.ErrHangs) { // then nothing can be closed
				return nil, err
			}
			return nil, errors.Join(err, e.Close())
		}
		e.idle <- c
	}
	return e, nil
}

// Read implements Mover.
func (e *Engine) Read(dst []byte, m gpu.Memory, off int64) error {
	return e.move(dst, m, off, false)
}

// Write implements Mover.
func (e *Engine) Write(m gpu.Memory, off int64, src []byte) error {
	return e.move(src, m, off, true)
}

// move copies between b and n bytes of m, and returns when they have arrived.
func (e *Engine) move(b []byte, m gpu.Memory, off int64, toDevice bool) error {
	c, err := e.take()
	if err != nil {
		return err
	}
	defer e.give(c)
	return c.hand.do(func() error { return e.moveOn(c, b, m, off, toDevice) })
}

func checkSpan(b []byte, m gpu.Memory, off int64) error {
	if off < 0 || off > m.Size() || int64(len(b)) > m.Size()-off {
		return fmt.Errorf("%d bytes at offset %d of memory of %d bytes", len(b), off, m.Size())
	}
	return nil
}

// moveOn is move on a stream whose hand calls it.
func (e *Engine) moveOn(c *stream, b []byte, m gpu.Memory, off int64, toDevice bool) error {
	if err := checkSpan(b, m, off); err != nil {
		return err
	}
	if at, ok := e.lookup(b); ok {
		return e.moveNow(c, at, m.Addr()+gpu.Addr(off), int64(len(b)), toDevice)
	}
	bounce := c.bounce.Host()[:bounceSize]
	for len(b) > 0 {
		n := min(len(b), len(bounce))
		if toDevice {
			if err := copyMapped(bounce, b[:n]); err != nil {
				return err
			}
		}
		if err := e.moveNow(c, c.bounce.Addr(), m.Addr()+gpu.Addr(off), int64(n), toDevice); err != nil {
			return err
		}
		if !toDevice {
			copy(b, bounce[:n])
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func (e *Engine) moveNow(c *stream, host, dev gpu.Addr, n int64, toDevice bool) error {
	dst, src := host, dev
	if toDevice {
		dst, src = dev, host
	}
	if err := e.copy(c, dst, src, n); err != nil {
		return err
	}
	e.single.add(1, int(n))
	return e.await(c)
}

// traffic counts the bytes of all copies: those under way share the bus.
type traffic struct{ begun, ended atomic.Int64 }

// copy begins a copy by a copy engine.
func (e *Engine) copy(c *stream, dst, src gpu.Addr, n int64) error {
	err := c.Copy(dst, src, n)
	if err == nil {
		e.begins(c, n)
	}
	return err
}

// begins follows the begin of a copy of n bytes.
func (e *Engine) begins(c *stream, n int64) {
	c.begun += n
	e.traffic.begun.Add(n)
}

// OnStuck has f called once, on a goroutine of its own, when copies are stuck: with why, which is an ErrStuck. After that no copy is under way.
func (e *Engine) OnStuck(f func(error)) { e.onStuck(f) }

// Close gives streams and memory back. No copy may be under way; after one that has not ended, or a call that does not return, all stays where it is.
func (e *Engine) Close() error {
	if e.isStuck() {
		return ErrStuck
	}
	frees := []func() error{func() error { e.unpins.Wait(); return nil }, e.gather.close}
	for _, c := range e.all {
		c.hand.close()
		frees = append(frees, c.Stream.Close)
		if c.bounce != nil {
			frees = append(frees, c.bounce.Close)
		}
		if c.list != nil {
			frees = append(frees, c.list.mem.Close)
		}
	}
	for _, s := range e.pinned() {
		frees = append(frees, s.mem.Close)
	}
	var errs []error
	for _, free := range frees {
		err := e.apart(free)
		errs = append(errs, err)
		if errors.Is(err, calls.ErrHangs) { // which ErrStuck is, too
			return errors.Join(errs...)
		}
	}
	e.all, e.spare, e.gather = nil, nil, nil
	e.index.Store(nil)
	return errors.Join(errs...)
}
