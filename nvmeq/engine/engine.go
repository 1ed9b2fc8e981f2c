package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
)

// Engine is a set of lanes on one controller. All methods may be called from any goroutine.
type Engine struct {
	c           *controller.Controller
	rt          gpu.Runtime // runs the lanes; nil: the controller's does
	cfg         Config
	maxTransfer int64
	noBAR       error // why BAR 0 is not in the kernels' reach, if DoorbellAuto fell back to the bridge
	lanes       []*lane
	spinning    atomic.Int32 // callers that drive resident lanes
	start       time.Time    // the lanes' clock counts from here, where they are given the time
	cpu         *Engine      // its lanes on the CPU, beside those on a GPU; nil: there are none
	peers       []*Engine    // its lanes on further GPUs (peers.go)
	peer        bool         // it is one of them
	here        bool         // it is such lanes: a controller in software works on their queues on the callers' threads
	devices     []string     // of such lanes: the GPUs (gpu.Facts.PCI) that have shares of them
	opens       [][]*lane    // by kind, the lanes that it may have; none: they are not divided
	router      router       // chooses between them
	loneAt      sync.Pool    // of *int: the lane that a lone command of a Go processor tries first
	loneNext    atomic.Uint32

	beforeThreads func() // Config.BeforeThreads, if threads may begin

	resources // changed by a failover, with every lane's drive and statsMu held

	completions atomic.Pointer[gpu.Reach] // of the memory of the completion queues

	gate      gate
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
	if c.Runtime().Facts().CallerDriven {
		cfg.CPULanes = 0
	}
	gpu := cfg
	gpu.Lanes = max(1, min(cfg.Lanes, (c.Queues()-cfg.CPULanes)/(1+len(cfg.More))))
	e, err := newEngine(c, gpu, nil)
	if err == nil {
		err = e.addPeers(gpu)
	}
	if err == nil && cfg.CPULanes > 0 {
		err = e.addCPULanes(cfg)
	}
	return e, err
}

// newEngine makes an engine whose lanes run on rt, or on the controller's runtime if that is nil. cfg is filled in.
func newEngine(c *controller.Controller, cfg Config, rt gpu.Runtime) (*Engine, error) {
	e := &Engine{c: c, cfg: cfg, rt: rt, peer: slices.Contains(cfg.More, rt), maxTransfer: cfg.MaxTransfer, start: time.Now(), beforeThreads: func() {}}
	if cfg.BeforeThreads != nil && (!e.runtime().Facts().CallerDriven || c.LonesWait()) {
		e.beforeThreads = cfg.BeforeThreads
	}
	if err := e.resources.load(e); err != nil {
		return nil, e.undo(fmt.Errorf("nvme: engine: %w", err))
	}
	qids := c.AllocQIDs(min(cfg.Lanes, e.drv.most()))
	if len(qids) == 0 {
		return nil, e.undo(fmt.Errorf("%s: all %d I/O queue pairs are in use", c.Name(), c.Queues()))
	}
	e.cfg.Lanes = len(qids)
	err := e.build(qids)
	if err == nil {
		err = c.Attach(pairs{e})
	}
	if err != nil {
		for _, l := range e.lanes {
			err = errors.Join(err, l.delete())
		}
		c.FreeQIDs(qids)
		return nil, e.undo(fmt.Errorf("nvme: engine: %w", err))
	}
	return e, nil
}

// undo frees what an engine has that cannot be made, for why. Of a runtime whose driver hangs nothing is freed.
func (e *Engine) undo(why error) error {
	if errors.Is(why, calls.ErrHangs) {
		e.c.FailRuntime()
		return errors.Join(why, e.resources.leave(e.c))
	}
	return errors.Join(why, e.free())
}

// build allocates the resources and lays out the lanes in them.
func (e *Engine) build(qids []uint16) error {
	g, err := e.resources.build(e, len(qids))
	if err != nil {
		return err
	}
	for i, qid := range qids {
		l := newLane(e, g, i)
		l.place(&e.resources, g, qid)
		e.lanes = append(e.lanes, l)
	}
	return e.describe(e)
}

// runtime is what runs the lanes.
func (e *Engine) runtime() gpu.Runtime {
	if e.rt != nil && !(e.peer && e.c.Failover() != nil) { // no GPU is used after one has failed
		return e.rt
	}
	return e.c.Runtime()
}

// Lanes is the number of queue pairs: of the first GPU, on the CPU, of further GPUs. Depth is how many commands one of them takes at once, MaxTransfer
// the largest transfer of a command in bytes.
func (e *Engine) Lanes() int         { return len(e.lanes) + e.CPULanes() + e.peerLanes() }
func (e *Engine) Depth() int         { return e.cfg.Depth - 1 }
func (e *Engine) MaxTransfer() int64 { return e.maxTransfer }

// Controller is the controller of the queue pairs.
func (e *Engine) Controller() *controller.Controller { return e.c }

// ErrClosed is wrapped by the errors of commands for an engine that was closed.
var ErrClosed = errors.New("the engine is closed")

// closeTimeout bounds how long Close waits for commands that are under way; they end by their own deadlines.
const closeTimeout = 15 * time.Minute

// Close waits for the commands under way, deletes the queues and frees the memory.
func (e *Engine) Close() error {
	e.closeOnce.Do(func() {
		e.closed.Store(true)
		e.router.close()
		if e.cpu != nil {
			defer func() { e.closeErr = errors.Join(e.closeErr, e.cpu.Close()) }()
		}
		for _, p := range e.peers {
			defer func() { e.closeErr = errors.Join(e.closeErr, p.Close()) }()
		}
		var w poll.Waiter
		for waited := (nap.Wait{}); e.inUse(); w.Idle() {
			if waited.Over(closeTimeout) {
				e.closeErr = fmt.Errorf("nvme: engine: commands still under way after %v; its memory is left allocated", closeTimeout)
				return
			}
		}
		c := e.c
		e.closeErr = c.Detach(pairs{e}, func() error {
			var errs []error
			if c.Err() == nil {
				for _, l := range e.lanes {
					errs = append(errs, l.delete())
					c.FreeQIDs([]uint16{l.qid})
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

// free gives the memory back. The controller has no queue in it any more.
func (e *Engine) free() error {
	e.statsMu.Lock()
	defer e.statsMu.Unlock()
	if len(e.lanes) > 0 {
		known := e.c.RuntimeFailed() && e.c.Err() == nil
		if err := e.drv.finish(); err != nil {
			// Memory under a kernel that still runs cannot be given back.
			if known { // and said
				err = nil
			} else {
				err = fmt.Errorf("nvme: engine: %w; its memory is left allocated", err)
			}
			e.lastStats = e.readStats()
			e.c.FailRuntime()
			return errors.Join(err, e.resources.leave(e.c))
		}
	}
	e.lastStats = e.readStats()
	err := e.resources.close(e.c)
	if errors.Is(err, calls.ErrHangs) { // it would be asked again, for what others have of it
		e.c.FailRuntime()
	}
	return err
}
