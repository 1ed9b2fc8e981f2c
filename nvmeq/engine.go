package nvmeq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// EngineConfig is what NewEngine needs; every field has a default.
type EngineConfig struct {
	Lanes       int           // I/O queue pairs; 0 is one per CPU, at least 4. Fewer if the controller has fewer
	Depth       int           // entries of a queue: 2 to 16384; 0 is 128. At most CAP.MQES
	MaxTransfer int64         // bytes of one command; 0 is 1 MiB. At most MDTS
	Timeout     time.Duration // of one I/O command; 0 is 30 s
	AbortWait   time.Duration // how long an aborted command may take to end; 0 is 2 s
	Retries     int           // of a failed command; 0 is 3, negative none
	Team        Team          // who works on a lane; no difference on a CPU
	Batch       bool          // one launch per batch (kernels.BatchKernel) instead of steps or resident kernels
	Image       []byte        // the kernels; nil is the embedded image for the runtime's architecture
}

// Team is how many threads of a device work on one lane.
type Team uint8

const (
	TeamThread Team = iota // one
	TeamWave               // a whole wave: 32 or 64 that post and poll together
)

const (
	maxDepth   = 16384
	rangePages = 4 // Dataset Management commands in flight on a lane
)

func (cfg *EngineConfig) fill(c *Controller) error {
	switch {
	case cfg.Lanes < 0 || cfg.Depth < 0 || cfg.Depth == 1 || cfg.MaxTransfer < 0 || cfg.Timeout < 0 || cfg.AbortWait < 0:
		return fmt.Errorf("nvmeq: engine of %d lanes, depth %d, transfers of %d bytes, timeout %v: not possible",
			cfg.Lanes, cfg.Depth, cfg.MaxTransfer, cfg.Timeout)
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.Lanes, max(4, runtime.NumCPU()))
	def(&cfg.Depth, 128)
	def(&cfg.Retries, 3)
	cfg.Depth = min(cfg.Depth, c.cap.MQES(), maxDepth)
	if cfg.MaxTransfer == 0 {
		cfg.MaxTransfer = 1 << 20
	}
	if limit := c.MaxTransfer(); limit > 0 {
		cfg.MaxTransfer = min(cfg.MaxTransfer, limit)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.AbortWait == 0 {
		cfg.AbortWait = 2 * time.Second
	}
	return nil
}

// Engine is a set of lanes on one controller. All methods may be called from any goroutine.
type Engine struct {
	c           *Controller
	cfg         EngineConfig
	maxTransfer int64
	drv         driver
	lanes       []*lane
	start       time.Time // the lanes' clock counts from here, where they are given the time
	clockHz     uint64    // of the device's clock otherwise; 0 is nanoseconds

	module gpu.Module
	bar    gpu.Memory // BAR 0, registered for kernels; the controller's
	shared gpu.Memory // rings, control words, counters: CPU and lanes
	own    gpu.Memory // lane structs and CIDs: lanes only
	stream gpu.Stream // for setting up
	sq     *dma       // all submission queues
	cq     *dma       // all completion queues
	prp    *dma       // all PRP lists
	ranges *dma       // Dataset Management range lists

	statsMu   sync.RWMutex
	lastStats []LaneStats // protected by statsMu: set when the counters' memory is gone
	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error
}

// NewEngine creates queue pairs and makes their lanes ready. The controller closes its engines; closing one earlier is
// allowed.
func (c *Controller) NewEngine(cfg EngineConfig) (*Engine, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := cfg.fill(c); err != nil {
		return nil, err
	}
	if !cfg.Batch && !c.rt.Facts().CallerDriven {
		cfg.Lanes = min(cfg.Lanes, residentLanes)
	}
	qids := c.takeQIDs(cfg.Lanes)
	if len(qids) == 0 {
		return nil, fmt.Errorf("%s: all %d I/O queue pairs are in use", c.t.Name(), c.queues)
	}
	cfg.Lanes = len(qids)
	e := &Engine{c: c, cfg: cfg, maxTransfer: cfg.MaxTransfer, start: time.Now(), clockHz: uint64(c.rt.Facts().ClockHz)}
	err := e.build(qids)
	if err == nil {
		// From here on a controller reset rebuilds this engine's queues too.
		c.ladder.Lock()
		for _, l := range e.lanes {
			if err = l.create(); err != nil {
				break
			}
		}
		if err == nil {
			c.mu.Lock()
			c.engines = append(c.engines, e)
			c.mu.Unlock()
		}
		c.ladder.Unlock()
	}
	if err != nil {
		for _, l := range e.lanes {
			err = errors.Join(err, l.delete())
		}
		c.returnQIDs(qids)
		return nil, errors.Join(fmt.Errorf("nvmeq: engine: %w", err), e.free())
	}
	return e, nil
}

// takeQIDs reserves up to n queue identifiers.
func (c *Controller) takeQIDs(n int) []uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, len(c.qids))
	got := append([]uint16(nil), c.qids[:n]...)
	c.qids = c.qids[n:]
	return got
}

func (c *Controller) returnQIDs(qids []uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.qids = append(c.qids, qids...)
}

// build loads the kernels and lays out the memory.
func (e *Engine) build(qids []uint16) error {
	rt, c := e.c.rt, e.c
	image := e.cfg.Image
	if image == nil {
		var err error
		if image, err = kernels.Image(rt.Facts().Arch); err != nil {
			return err
		}
	}
	var err error
	if e.module, err = rt.Load(image); err != nil {
		return fmt.Errorf("loading the kernels: %w", err)
	}
	if e.stream, err = rt.NewStream(); err != nil {
		return err
	}
	if e.drv, err = newDriver(e); err != nil {
		return err
	}
	if err = c.quietly(func() (err error) { e.bar, err = c.acquireBAR(); return err }); err != nil {
		return fmt.Errorf("registering BAR 0 with %s: %w", rt.Name(), err)
	}
	g := newGeometry(e.cfg, c.mps)
	n, p := int64(len(qids)), c.cfg.Placement
	for _, a := range []struct {
		d    **dma
		kind gpu.MemKind
		size int64
	}{{&e.sq, p.SQ, g.sq}, {&e.cq, p.CQ, g.cq}, {&e.prp, p.List, g.prp}, {&e.ranges, gpu.HostMapped, g.ranges}} {
		if *a.d, err = newDMA(c, a.kind, n*a.size, g.page); err != nil {
			return err
		}
	}
	if e.shared, err = rt.Alloc(p.Ring, n*g.shared); err != nil {
		return err
	}
	if e.own, err = rt.Alloc(p.Lane, n*g.own); err != nil {
		return err
	}
	if e.shared.Host() == nil || e.ranges.host == nil {
		return fmt.Errorf("%s gives no CPU view of %v memory, which the rings need", rt.Name(), p.Ring)
	}
	clear(e.shared.Host())
	for i, qid := range qids {
		l, err := newLane(e, g, i, qid)
		if err != nil {
			return err
		}
		e.lanes = append(e.lanes, l)
	}
	return nil
}

// Lanes is the number of queue pairs, Depth how many commands one of them takes at once, MaxTransfer the largest
// transfer of a command in bytes.
func (e *Engine) Lanes() int         { return len(e.lanes) }
func (e *Engine) Depth() int         { return e.cfg.Depth - 1 }
func (e *Engine) MaxTransfer() int64 { return e.maxTransfer }

// Controller is whose queues these are.
func (e *Engine) Controller() *Controller { return e.c }

// AnyLane lets Do choose.
const AnyLane = -1

// ErrClosed is wrapped by errors of an engine that was closed.
var ErrClosed = errors.New("the engine is closed")

// Do carries out the commands on one lane, concurrently and in no defined order, and returns when all have ended: nil,
// or the error of the first that failed. lane is a hint, taken modulo Lanes; AnyLane picks one that is idle. A command
// that makes no sense fails the call before anything is done.
func (e *Engine) Do(lane int, cmds []Command) error {
	if len(cmds) == 0 {
		return nil
	}
	if err := e.prepare(cmds); err != nil {
		return err
	}
	l := e.pick(lane)
	if err := l.enter(); err != nil {
		return err
	}
	b := l.push(cmds, false)
	l.wait(b)
	l.drop(b)
	l.users.Add(-1)
	return firstErr(cmds)
}

// Spread is Do over as many lanes as there are commands: for controllers whose queue pairs work in parallel.
func (e *Engine) Spread(cmds []Command) error {
	n := min(len(e.lanes), len(cmds))
	if n <= 1 {
		return e.Do(AnyLane, cmds)
	}
	if err := e.prepare(cmds); err != nil {
		return err
	}
	return e.spread(cmds, n)
}

func (e *Engine) prepare(cmds []Command) error {
	if err := e.c.Err(); err != nil {
		return err
	}
	for i := range cmds {
		c := &cmds[i]
		c.Err, c.Status, c.DW0, c.Latency, c.tries, c.page = nil, 0, 0, 0, 0, -1
		if err := e.check(c); err != nil {
			c.Err = fmt.Errorf("nvmeq: %w", err)
			return c.Err
		}
	}
	return nil
}

func firstErr(cmds []Command) error {
	for i := range cmds {
		if cmds[i].Err != nil {
			return cmds[i].Err
		}
	}
	return nil
}

// pick chooses the lane of a batch: the caller's, or one that nobody uses, or any.
func (e *Engine) pick(hint int) *lane {
	if hint >= 0 {
		return e.lanes[hint%len(e.lanes)]
	}
	n := uint32(len(e.lanes))
	first := rand.Uint32N(n)
	best := e.lanes[first]
	least := best.users.Load()
	for i := uint32(1); i < n && least > 0; i++ {
		l := e.lanes[(first+i)%n]
		if u := l.users.Load(); u < least {
			best, least = l, u
		}
	}
	return best
}

// closeTimeout bounds how long Close waits for commands that are under way; they end by their own deadlines.
const closeTimeout = 5 * time.Minute

// Close waits for the commands under way, deletes the queues and frees the memory.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() {
		e.closed.Store(true)
		var w waiter
		for deadline := time.Now().Add(closeTimeout); e.inUse(); w.idle() {
			if time.Now().After(deadline) {
				e.closeErr = fmt.Errorf("nvmeq: engine: commands still under way after %v; its memory is left allocated", closeTimeout)
				return
			}
		}
		c := e.c
		c.ladder.Lock()
		defer c.ladder.Unlock()
		c.mu.Lock()
		for i, other := range c.engines {
			if other == e {
				c.engines = append(c.engines[:i], c.engines[i+1:]...)
				break
			}
		}
		c.mu.Unlock()
		var errs []error
		if c.Err() == nil {
			for _, l := range e.lanes {
				errs = append(errs, l.delete())
				c.returnQIDs([]uint16{l.qid})
			}
		}
		e.closeErr = errors.Join(append(errs, e.free())...)
	})
	return e.closeErr
}

func (e *Engine) inUse() bool {
	for _, l := range e.lanes {
		if l.users.Load() != 0 {
			return true
		}
	}
	return false
}

// free gives the memory back. The controller no longer knows of it.
func (e *Engine) free() error {
	e.statsMu.Lock()
	defer e.statsMu.Unlock()
	var errs []error
	for _, l := range e.lanes {
		if err := e.drv.sync(l); err != nil {
			// Memory under a kernel that still runs cannot be given back.
			errs = append(errs, fmt.Errorf("nvmeq: engine: lane %d: %w; its memory is left allocated", l.index, err))
		}
	}
	e.lastStats = e.readStats()
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, l := range e.lanes {
		errs = append(errs, l.stream.Close())
	}
	for _, d := range []*dma{e.sq, e.cq, e.prp, e.ranges} {
		errs = append(errs, d.Close())
	}
	for _, m := range []gpu.Memory{e.shared, e.own} {
		if m != nil {
			errs = append(errs, e.c.quietly(m.Close))
		}
	}
	if e.bar != nil {
		errs = append(errs, e.c.quietly(e.c.releaseBAR))
	}
	if e.stream != nil {
		errs = append(errs, e.stream.Close())
	}
	if e.module != nil {
		errs = append(errs, e.c.quietly(e.module.Close))
	}
	return errors.Join(errs...)
}
