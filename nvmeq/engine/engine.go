package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// EngineConfig is what New needs; every field has a default.
type Config struct {
	Lanes       int           // I/O queue pairs; 0 is one per CPU, at least 4. Fewer if the controller has fewer
	Depth       int           // entries of a queue: 2 to 16384; 0 is 128. At most CAP.MQES
	MaxTransfer int64         // bytes of one command; 0 is 1 MiB. At most MDTS
	Timeout     time.Duration // of one I/O command; 0 is 30 s. A software controller's flush has 20 times that
	Silence     time.Duration // how long a lane's kernel may give no sign of life; 0 is 5 s
	AbortWait   time.Duration // how long an aborted command may take to end; 0 is 2 s
	Retries     int           // of a failed command; 0 is 3, negative none
	Team        Team          // who works on a lane; no difference on a CPU
	Doorbell    DoorbellRoute // how lanes ring
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

func (cfg *Config) fill(c *controller.Controller) error {
	switch {
	case cfg.Lanes < 0 || cfg.Depth < 0 || cfg.Depth == 1 || cfg.MaxTransfer < 0 || cfg.Timeout < 0 || cfg.AbortWait < 0 || cfg.Silence < 0:
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
	cfg.Depth = min(cfg.Depth, c.Capabilities().MQES(), maxDepth)
	if cfg.MaxTransfer == 0 {
		cfg.MaxTransfer = 1 << 20
	}
	if limit := c.MaxTransfer(); limit > 0 {
		cfg.MaxTransfer = min(cfg.MaxTransfer, limit)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second
	}
	if cfg.Silence == 0 {
		cfg.Silence = 5 * time.Second
	}
	if cfg.AbortWait == 0 {
		cfg.AbortWait = 2 * time.Second
	}
	return nil
}

// Engine is a set of lanes on one controller. All methods may be called from any goroutine.
type Engine struct {
	c           *controller.Controller
	cfg         Config
	maxTransfer int64
	noBAR       error // why BAR 0 is not in the kernels' reach, if DoorbellAuto took the bridge
	lanes       []*lane
	spinning    atomic.Int32 // callers that drive resident lanes
	start       time.Time    // the lanes' clock counts from here, where they are given the time

	works // changed by a failover, with every lane's drive and statsMu held

	statsMu   sync.RWMutex
	lastStats []LaneStats // protected by statsMu: set when the counters' memory is gone
	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error
}

// New creates queue pairs and makes their lanes ready. The controller closes its engines; closing one earlier is
// allowed.
func New(c *controller.Controller, cfg Config) (*Engine, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	if err := cfg.fill(c); err != nil {
		return nil, err
	}
	if !cfg.Batch && !c.Runtime().Facts().CallerDriven {
		cfg.Lanes = min(cfg.Lanes, residentLanes)
	}
	qids := c.TakeQIDs(cfg.Lanes)
	if len(qids) == 0 {
		return nil, fmt.Errorf("%s: all %d I/O queue pairs are in use", c.Name(), c.Queues())
	}
	cfg.Lanes = len(qids)
	e := &Engine{c: c, cfg: cfg, maxTransfer: cfg.MaxTransfer, start: time.Now()}
	err := e.build(qids)
	if err == nil {
		err = c.Attach(pairs{e})
	}
	if err != nil {
		for _, l := range e.lanes {
			err = errors.Join(err, l.delete())
		}
		c.ReturnQIDs(qids)
		return nil, errors.Join(fmt.Errorf("nvmeq: engine: %w", err), e.free())
	}
	return e, nil
}

// build makes the works and lays out the lanes in them.
func (e *Engine) build(qids []uint16) error {
	g, err := e.works.build(e, len(qids))
	if err != nil {
		return err
	}
	for i, qid := range qids {
		l := newLane(e, g, i)
		if err := l.place(&e.works, g, qid); err != nil {
			return fmt.Errorf("lane %d: %w", i, err)
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
func (e *Engine) Controller() *controller.Controller { return e.c }

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
	weight := weigh(cmds)
	l, err := e.claim(lane, weight)
	if err != nil {
		return err
	}
	b := l.push(cmds, false)
	l.wait(b)
	l.drop(b)
	l.load.Add(-weight)
	e.checkMemory(cmds)
	return firstErr(cmds)
}

// checkMemory fails the commands that moved data to or from device memory which is no longer there.
func (e *Engine) checkMemory(cmds []Command) {
	if !e.c.Placement().Data.Device() {
		return
	}
	v, ok := e.c.Runtime().(gpu.MemoryChecker)
	if !ok {
		return
	}
	err := v.CheckMemory()
	if err == nil {
		return
	}
	for i := range cmds {
		if c := &cmds[i]; c.Err == nil && c.Len > 0 {
			c.Err = fmt.Errorf("nvmeq: %s: its data is lost: %w", c, err)
		}
	}
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
	err := e.spread(cmds, n)
	if err == nil {
		e.checkMemory(cmds)
		err = firstErr(cmds)
	}
	return err
}

func (e *Engine) prepare(cmds []Command) error {
	if err := e.c.Err(); err != nil {
		return err
	}
	for i := range cmds {
		c := &cmds[i]
		c.Err, c.Status, c.DW0, c.Latency, c.tries, c.page = nil, 0, 0, 0, 0, -1
		err := e.check(c)
		if err == nil {
			err = e.refuses(c)
		}
		if err != nil {
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

// flushWeight is what a flush weighs beside other commands: who has a choice keeps away from a lane that has one.
const flushWeight = 1 << 20

func weigh(cmds []Command) int64 {
	for i := range cmds {
		if cmds[i].Op == nvme.IOFlush {
			return flushWeight
		}
	}
	return 1
}

// flushPatience is how many times as long as another command a software controller's flush may take: it writes out what the
// system's cache holds of the image, which may be gigabytes.
const flushPatience = 20

// timeout is that of one command.
func (e *Engine) timeout(op nvme.Opcode) time.Duration {
	if op == nvme.IOFlush && e.c.Simulated() {
		return flushPatience * e.cfg.Timeout
	}
	return e.cfg.Timeout
}

// claim counts a caller in on the lane of its batch. With the choice it takes the first that nobody uses: so little work keeps few
// lanes awake, and whoever serves their queues.
func (e *Engine) claim(hint int, weight int64) (*lane, error) {
	if hint < 0 {
		for _, l := range e.lanes {
			if l.load.CompareAndSwap(0, weight) {
				return l, l.entered(weight)
			}
		}
	}
	l := e.pick(hint)
	l.load.Add(weight)
	return l, l.entered(weight)
}

// pick chooses the lane of a batch: the caller's, or the one with the least to do.
func (e *Engine) pick(hint int) *lane {
	if hint >= 0 {
		return e.lanes[hint%len(e.lanes)]
	}
	n := uint32(len(e.lanes))
	first := rand.Uint32N(n)
	best := e.lanes[first]
	least := best.load.Load()
	for i := uint32(1); i < n && least > 0; i++ {
		l := e.lanes[(first+i)%n]
		if u := l.load.Load(); u < least {
			best, least = l, u
		}
	}
	return best
}

// closeTimeout bounds how long Close waits for commands that are under way; they end by their own deadlines.
const closeTimeout = 15 * time.Minute

// Close waits for the commands under way, deletes the queues and frees the memory.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() {
		e.closed.Store(true)
		var w poll.Waiter
		for deadline := time.Now().Add(closeTimeout); e.inUse(); w.Idle() {
			if time.Now().After(deadline) {
				e.closeErr = fmt.Errorf("nvmeq: engine: commands still under way after %v; its memory is left allocated", closeTimeout)
				return
			}
		}
		c := e.c
		e.closeErr = c.Detach(pairs{e}, func() error {
			var errs []error
			if c.Err() == nil {
				for _, l := range e.lanes {
					errs = append(errs, l.delete())
					c.ReturnQIDs([]uint16{l.qid})
				}
			}
			return errors.Join(append(errs, e.free())...)
		})
	})
	return e.closeErr
}

func (e *Engine) inUse() bool {
	for _, l := range e.lanes {
		if l.load.Load() != 0 {
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
		e.c.FailRuntime()
		return errors.Join(append(errs, e.works.closeQueues())...)
	}
	for _, l := range e.lanes {
		errs = append(errs, l.stream.Close())
	}
	errs = append(errs, e.works.close(e.c))
	return errors.Join(errs...)
}
