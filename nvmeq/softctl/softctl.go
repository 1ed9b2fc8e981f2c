package softctl

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// state is what the controller is doing.
type state uint32

const (
	stateDisabled state = iota
	stateStarting       // CC.EN is set, CSTS.RDY is not
	stateReady
	stateShutdown // shutdown processing or complete: no command is carried out until a reset
	stateFatal    // CSTS.CFS: nothing is, until a reset
)

// Controller is one NVMe controller. It implements controller.Transport and controller.Stepper.
type Controller struct {
	opt   Options
	name  string
	log   *slog.Logger
	bar   *barMemory
	dma   *addressSpace
	files []*media.Image
	ns    []*namespace // NSID - 1

	state    atomic.Uint32 // state; changed with mu held, but for stateFatal
	injector atomic.Pointer[Injector]
	cached   atomic.Bool // a volatile write cache is there and enabled
	sq       []atomic.Pointer[subQueue]
	stats    []atomic.Pointer[queueStats]
	events   eventQueue
	threads  *threads // nil: Step works on the I/O queues
	flushers sync.WaitGroup
	noRing   atomic.Pointer[error] // why queues have no io_uring; nil: they have, if the image is a block device
	notHeld  atomic.Pointer[error] // why memory is not registered with them
	errors   errorLog
	failures saying // of the medium, that were logged

	mu       sync.Mutex // registers, admin queue, everything below
	closed   bool
	closeErr error
	stopOnce sync.Once // of threads
	cc       configuration
	due      time.Time // when stateStarting or shutdown processing ends
	cq       []*compQueue
	aers     []uint16 // CIDs of outstanding Asynchronous Event Requests
	features features

	hostBuffer hostBuffer
}

var (
	_ controller.Transport = (*Controller)(nil)
	_ controller.Stepper   = (*Controller)(nil)

	_ controller.Borrower = (*Controller)(nil)

	_ controller.StickyFlush = (*Controller)(nil)
	_ controller.HereStepper = (*Controller)(nil)
	_ controller.LoneStepper = (*Controller)(nil)
)

// Open makes a controller over the image file or block device at path. The image is locked until Close.
func Open(path string, opt Options) (_ *Controller, err error) {
	if opt.BlockSize == 0 {
		opt.BlockSize = media.BlockSize(path)
	}
	if opt, err = opt.withDefaults(); err != nil {
		return nil, err
	}
	c := &Controller{
		opt:   opt,
		name:  path,
		log:   opt.Log.With("controller", path),
		dma:   newAddressSpace(opt.Mover),
		sq:    make([]atomic.Pointer[subQueue], opt.Queues+1),
		stats: make([]atomic.Pointer[queueStats], opt.Queues+1),
		cq:    make([]*compQueue, opt.Queues+1),
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	mo := media.Options{BlockSize: opt.BlockSize, ReadOnly: opt.ReadOnly, Log: c.log}
	mo.Pinner, _ = opt.Mover.(media.Pinner)
	for _, p := range append([]string{path}, opt.Images...) {
		m, err := media.Open(p, mo)
		if err != nil {
			return nil, err
		}
		c.files = append(c.files, m)
	}
	if c.ns, err = c.makeNamespaces(); err != nil {
		return nil, err
	}
	if c.bar, err = newBAR(opt.Queues, opt.Stride); err != nil {
		return nil, err
	}
	if opt.NoIOUring {
		c.noRing.Store(&errSwitchedOff)
	}
	c.SetInjector(opt.Injector)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resetLocked(true)
	c.startThreads(opt.Threads)
	return c, nil
}

// Name is the image's path.
func (c *Controller) Name() string { return c.name }

// Pinned is how many bytes of its images are pinned now, for a copy engine to read in place.
func (c *Controller) Pinned() int64 {
	var n int64
	for _, m := range c.files {
		n += m.Pinned()
	}
	return n
}

// BAR is BAR 0: stores to its doorbells are seen by Step, stores elsewhere in it do nothing.
func (c *Controller) BAR() []byte { return c.bar.mem }

// SetInjector replaces the injector; nil removes it.
func (c *Controller) SetInjector(i Injector) {
	if i == nil {
		c.injector.Store(nil)
		return
	}
	c.injector.Store(&i)
}

func (c *Controller) Map(m gpu.Memory, off, n int64) (nvme.IOVA, error) {
	return c.dma.add(m, off, n)
}

// Borrowed implements controller.Borrower: such memory is not registered with an io_uring.
func (c *Controller) Borrowed(at nvme.IOVA) { c.dma.borrowed(at) }

// Unmap returns when no command uses the mapping any more. It fails with the mover's Stuck where the memory has no host view: then the
// device may use it yet.
func (c *Controller) Unmap(a nvme.IOVA) error {
	r, err := c.dma.remove(a)
	if err != nil {
		return err
	}
	c.hostBuffer.check(c.dma)
	c.quiesce(r)
	if s, ok := c.opt.Mover.(interface{ Stuck() error }); ok && r.host == nil {
		return s.Stuck()
	}
	return nil
}

// quiesce waits until no step uses the previous address table any more, nor a ring the regions that are gone from it.
func (c *Controller) quiesce(gone ...*region) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.quiesceLocked(gone...)
}

// quiesceLocked waits for the steps of I/O queues that began before.
func (c *Controller) quiesceLocked(gone ...*region) {
	for i := range c.sq {
		if q := c.sq[i].Load(); q != nil && i > 0 {
			q.mu.Lock()
			c.finishAll(q)
			for _, r := range gone {
				q.direct.drop(r)
			}
			q.mu.Unlock()
		}
	}
}

// Reset is a function-level reset.
func (c *Controller) Reset() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return errClosed
	}
	c.resetLocked(true)
	return nil
}

var errSwitchedOff = errors.New("it is switched off")

var errClosed = errors.New("the controller is closed")

// Close stops the controller, makes what was written durable and lets go of the image. The BAR is gone after it.
func (c *Controller) Close() error {
	c.stopOnce.Do(c.stopThreads)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.closeErr // the second time proves nothing
	}
	c.resetLocked(true)
	c.closed = true
	c.flushers.Wait() // no queue is left that could begin another
	var err error
	if !c.opt.ReadOnly {
		err = c.flushAll()
	} else {
		for _, m := range c.files {
			err = errors.Join(err, m.Whole())
		}
	}
	c.closeErr = errors.Join(err, c.release())
	return c.closeErr
}

func (c *Controller) release() error {
	var errs []error
	if c.bar != nil {
		errs = append(errs, c.bar.close())
	}
	for _, m := range c.files {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// flushAll makes every namespace durable.
func (c *Controller) flushAll() error {
	var errs []error
	done := map[media.Medium]bool{}
	for _, ns := range c.ns {
		if !done[ns.medium] {
			done[ns.medium] = true
			if err := ns.medium.Flush(); err != nil {
				errs = append(errs, fmt.Errorf("image %q: %w", ns.image.Path(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// Step works on submission queue sqid and its completion queue. What the host rang before the call has been fetched
// when it returns, as far as the completion queue has room, and completed unless it is a flush, or Options ask for latency
// or disorder.
// With a flush under way and nothing else to do it waits for that a little. With Options.Threads it only sees to it that the
// queue's thread is awake.
func (c *Controller) Step(sqid uint16) bool {
	if sqid == 0 {
		return c.stepAdmin()
	}
	if int(sqid) >= len(c.sq) {
		return false
	}
	q := c.sq[sqid].Load()
	if q == nil {
		return c.stray(sqid)
	}
	if c.threads != nil {
		c.threads.nudge(sqid)
		return false
	}
	return c.stepQueue(q) || q.await() && c.stepQueue(q) || q.awaitFlush()
}

// StepHere is Step on the caller's thread even where there are threads: they leave the queue to such callers from then on.
func (c *Controller) StepHere(sqid uint16) bool {
	if c.threads == nil || sqid == 0 || int(sqid) >= len(c.sq) {
		return c.Step(sqid)
	}
	q := c.sq[sqid].Load()
	if q == nil {
		return c.stray(sqid)
	}
	q.leave()
	return c.stepQueue(q) || q.await() && c.stepQueue(q) || q.awaitFlush()
}

// leave has the threads leave the queue to callers.
func (q *subQueue) leave() {
	if !q.here.Load() {
		q.here.Store(true)
	}
}

func (c *Controller) stepQueue(q *subQueue) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead || c.now() != stateReady {
		return false
	}
	did := c.serve(q, q.batch)
	q.batch.settle(c)
	return did
}

func (c *Controller) stepAdmin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.settle()
	q := c.sq[0].Load()
	if q == nil || c.now() != stateReady {
		return false
	}
	did := c.serve(q, nil)
	return c.deliverEvents(q) || did
}

// stray looks for a doorbell that was rung for a queue that does not exist.
func (c *Controller) stray(sqid uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.now() != stateReady || c.sq[sqid].Load() != nil {
		return false
	}
	off := c.bar.sqDoorbell(sqid)
	v := c.bar.load(off)
	if v == 0 {
		return false
	}
	c.bar.store(off, 0)
	c.log.Warn("doorbell of a submission queue that does not exist", "queue", sqid, "value", v)
	c.events.add(eventInvalidDoorbell)
	return true
}

func (c *Controller) now() state { return state(c.state.Load()) }
