package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Config is what Open needs. The caller closes Runtime and Transport after the Controller.
type Config struct {
	Runtime   gpu.Runtime
	Transport Transport
	Placement Placement             // zero: pinned host memory
	Queues    int                   // I/O queue pairs to ask for; 0 is 64. Getting fewer is normal
	Timeout   time.Duration         // of one admin command; 0 is 10 s
	Log       *slog.Logger          // nil: discard
	OnEvent   func(nvme.AsyncEvent) // called for each asynchronous event, after it was logged

	// HostBuffer is how many bytes of the host's memory the controller may have for itself, if it asks for it (Base §8.9); 0 is none.
	HostBuffer int64

	// Spare opens a runtime for the lanes when Runtime has failed: a lane's kernel hangs, does not start, or the device is
	// lost. It is closed with the controller. nil: the controller goes out of service instead.
	Spare func() (gpu.Runtime, error)
	// SpareReads refuses commands that write after such a failover, with engine.ErrReadOnly.
	SpareReads bool
}

const defaultQueues = 64

// Controller is one enabled NVMe controller. All methods may be called from any goroutine.
type Controller struct {
	cfg     Config
	rt      atomic.Pointer[gpu.Runtime] // runs the lanes: cfg.Runtime, or the spare one
	t       Transport
	stepper Stepper     // nil unless the controller runs in software and works on its caller's thread
	loner   LoneStepper // nil unless it carries out lone commands without a queue
	log     *slog.Logger

	cap    nvme.CAP
	vs     nvme.VS
	stride nvme.Stride
	mps    int64 // host page size in bytes, CC.MPS

	admin sync.Mutex
	aq    *adminQueue // protected by admin

	ident      *nvme.IdentifyController
	nvm        *nvme.NVMController
	namespaces []*Namespace
	hostBuffer *hostBuffer // nil if the controller has none; set by Open
	power      power       // its counts when the controller was opened
	queues     int         // I/O queue pairs that the controller granted

	mu       sync.Mutex
	qids     []uint16      // protected by mu: I/O queue identifiers not in use
	bar      *BAR          // protected by mu: BAR 0 for kernels, while an engine uses it
	barUsers int           // protected by mu
	ownBARs  []*BAR        // protected by mu: the same for kernels of other runtimes, one for each engine, and what was imported
	barLost  bool          // protected by mu: a kernel that hangs has it
	left     bool          // protected by mu: the device was taken away
	attached []Queues      // protected by mu
	more     []gpu.Runtime // protected by mu: that run lanes beside Config.Runtime

	resetMu   sync.Mutex    // held while the controller is reset
	resets    int           // protected by resetMu: in a row, without a completed command between them
	resetAt   time.Time     // protected by resetMu: the end of the last one
	gen       atomic.Uint32 // resets so far
	resetting atomic.Bool   // a reset is under way or about to be
	failure   atomic.Pointer[error]

	shiftLow  [64]uint8        // log2 of the block size by NSID, 0 for namespaces that cannot be used
	shiftHigh map[uint32]uint8 // the same for larger NSIDs

	copies copyengine.Pool // of mirrors

	kept byAddress[kept]
	lent byAddress[lent]

	flushErr      atomic.Pointer[error]    // what a Flush failed with; never cleared
	failover      atomic.Pointer[Failover] // nil until the lanes have moved to the spare runtime
	runtimeFailed atomic.Bool              // Runtime has failed
	unmapHangs    atomic.Bool              // since that, an Unmap has not ended
	dataOnGPU     atomic.Bool              // data memory exists that goes when Runtime fails
	leftMemory    atomic.Int64             // LeftMemory

	closing   chan struct{}
	watchDone chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// Open brings the controller up (Base §3.5.1): it reads CAP, disables the controller, allocates the admin queue, enables the
// controller, reads its Identify data and its namespaces, asks for I/O queues, and arms asynchronous events. On error the
// controller is disabled again and all memory freed.
func Open(cfg Config) (*Controller, error) {
	if cfg.Runtime == nil || cfg.Transport == nil {
		return nil, errors.New("nvme: Open needs a Runtime and a Transport")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Queues <= 0 {
		cfg.Queues = defaultQueues
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = adminTimeout
	}
	stepper, _ := cfg.Transport.(Stepper)
	c := &Controller{cfg: cfg, t: cfg.Transport, stepper: stepper, log: cfg.Log,
		closing: make(chan struct{}), watchDone: make(chan struct{})}
	if l, ok := stepper.(LoneStepper); ok && l.LoneMost() > 0 {
		c.loner = l
	}
	c.cfg.Placement = c.complete(cfg.Placement)
	c.copies.OnStuck(c.LeaveRuntime)
	c.rt.Store(&cfg.Runtime)
	if err := c.open(); err != nil {
		if c.aq != nil {
			c.disable() // so that it does not write to memory that is freed
			err = errors.Join(err, c.aq.d.Close(), c.closeHostBuffer())
		}
		return nil, fmt.Errorf("nvme controller %s: %w", c.t.Name(), err)
	}
	if l, ok := c.t.(Leaver); ok {
		l.OnLeave(c.leave)
	}
	go c.watch()
	return c, nil
}

func (c *Controller) open() error {
	if err := c.readCapabilities(); err != nil {
		return err
	}
	if err := c.stop(); err != nil {
		return err
	}
	var err error
	if c.aq, err = newAdminQueue(c, c.mps); err != nil {
		return err
	}
	if err := c.enable(); err != nil {
		return err
	}
	if err := c.identify(); err != nil {
		return err
	}
	c.openHostBuffer()
	if c.queues, err = c.start(); err != nil {
		return err
	}
	if c.power, err = c.readPower(); err != nil {
		return err
	}
	for q := 1; q <= c.queues; q++ {
		c.qids = append(c.qids, uint16(q))
	}
	return nil
}

// start follows every enable: it asks for I/O queues and for retry delays, gives the controller memory, and arms asynchronous events.
func (c *Controller) start() (queues int, err error) {
	n, err := c.negotiateQueues(c.cfg.Queues)
	if err != nil {
		return 0, err
	}
	if err := c.enableEvents(); err != nil {
		return 0, err
	}
	if err := c.enableRetryDelays(); err != nil {
		return 0, err
	}
	if err := c.giveHostBuffer(); err != nil {
		return 0, err
	}
	c.admin.Lock()
	defer c.admin.Unlock()
	c.armEventsLocked()
	return n, nil
}

// Placement is where memory is allocated: Config.Placement, or host memory after a failover.
func (c *Controller) Placement() Placement {
	if c.failover.Load() != nil {
		var host Placement
		host.fill(c.Runtime())
		return host
	}
	return c.cfg.Placement
}

// Place changes where memory is allocated from now on. Nothing may be attached. The admin queue stays where it is.
func (c *Controller) Place(p Placement) error {
	if len(c.queuePairs()) > 0 || c.failover.Load() != nil {
		return fmt.Errorf("nvme: %s: the memory of queue pairs that are in use cannot be placed elsewhere", c.t.Name())
	}
	c.cfg.Placement = c.complete(p)
	return nil
}

// complete replaces what a placement leaves open.
func (c *Controller) complete(p Placement) Placement {
	p.fill(c.cfg.Runtime)
	if c.stepper == nil && !c.cfg.Runtime.Facts().CallerDriven {
		p.usePages()
	}
	return p
}

// Runtime runs the lanes: Config.Runtime, or the spare one after a failover.
func (c *Controller) Runtime() gpu.Runtime { return *c.rt.Load() }

// Step has a controller in software work on a queue. It says whether anything was done.
func (c *Controller) Step(sqid uint16) bool { return c.stepper != nil && c.stepper.Step(sqid) }

// StepHere is Step for a queue that only such callers drive: for lanes on the CPU beside those on a GPU.
func (c *Controller) StepHere(sqid uint16) bool {
	if h, ok := c.stepper.(HereStepper); ok {
		return h.StepHere(sqid)
	}
	return c.Step(sqid)
}

// LoneMost is how many bytes a command that Lone carries out has at most; 0: it carries out none.
func (c *Controller) LoneMost() int64 {
	if c.loner == nil {
		return 0
	}
	return c.loner.LoneMost()
}

// LonesWait says whether the caller of Lone waits for a device meanwhile, as a rule.
func (c *Controller) LonesWait() bool { return c.loner != nil && c.loner.LonesWait() }

// Lone has a controller in software carry out a command without the rings of a queue pair, which the caller drives. It says whether that was done.
func (c *Controller) Lone(sqid uint16, cmd LoneCommand) bool {
	if c.loner == nil || c.resetting.Load() || c.failure.Load() != nil || c.failover.Load() != nil || c.Kept() {
		return false
	}
	return c.loner.Lone(sqid, cmd)
}

// Log is Config.Log.
func (c *Controller) Log() *slog.Logger { return c.log }

// Transport is how the controller is reached.
func (c *Controller) Transport() Transport { return c.t }

// Doorbells gives the offsets of doorbells in BAR 0. PageSize is the host page size in bytes (CC.MPS).
func (c *Controller) Doorbells() nvme.Stride { return c.stride }
func (c *Controller) PageSize() int64        { return c.mps }

// Capabilities, Version and Identify are what the controller reports.
func (c *Controller) Capabilities() nvme.CAP             { return c.cap }
func (c *Controller) Version() nvme.VS                   { return c.vs }
func (c *Controller) Identify() *nvme.IdentifyController { return c.ident }
func (c *Controller) NVM() *nvme.NVMController           { return c.nvm }

// Namespaces are the active ones, by rising NSID, usable or not.
func (c *Controller) Namespaces() []*Namespace { return c.namespaces }

// Simulated says that the controller is software.
func (c *Controller) Simulated() bool { return c.stepper != nil }

// Inline says that commands are carried out on the thread of the caller: by a controller in software, for lanes that run on the
// caller's thread. Queue pairs do not work in parallel then.
func (c *Controller) Inline() bool { return c.stepper != nil && c.Runtime().Facts().CallerDriven }

// Queues is how many I/O queue pairs the controller granted.
func (c *Controller) Queues() int { return c.queues }

// CMB reads where the controller memory buffer is and how large; false where there is none. Since NVMe 1.4 its registers
// read zero until they are switched on (Base §3.1.3.14); they are switched off again.
func (c *Controller) CMB() (nvme.CMBLOC, nvme.CMBSZ, bool) {
	if !c.cap.CMBS() {
		return 0, 0, false
	}
	if c.vs.AtLeast(1, 4) {
		was := c.t.Read64(nvme.RegCMBMSC)
		if !nvme.CMBMSC(was).CRE() {
			c.t.Write64(nvme.RegCMBMSC, uint64(nvme.NewCMBMSC(0, false)))
			defer c.t.Write64(nvme.RegCMBMSC, was)
		}
	}
	loc, size := nvme.CMBLOC(c.t.Read32(nvme.RegCMBLOC)), nvme.CMBSZ(c.t.Read32(nvme.RegCMBSZ))
	return loc, size, size.Size() > 0
}

// Name is what the user calls the device.
func (c *Controller) Name() string { return c.t.Name() }

// MaxTransfer is the largest transfer of one command in bytes (MDTS), 0 for no limit.
func (c *Controller) MaxTransfer() int64 { return c.ident.MaxTransfer(c.cap.MPSMIN()) }

// Err is why the controller is out of service for good, nil while it works.
func (c *Controller) Err() error {
	if p := c.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// fail takes the controller out of service for good. The first reason stays.
func (c *Controller) fail(err error) {
	err = fmt.Errorf("nvme controller %s is out of service: %w", c.t.Name(), err)
	if c.failure.CompareAndSwap(nil, &err) {
		c.log.Error("controller given up; unmount, and mount again", "device", c.t.Name(), "why", err.Error())
	}
}

// checkStatus resets the controller if CSTS reports a fatal error, if others have disabled it (a reset of the function through sysfs) or its power was off for a while (a suspend of
// the machine), or if the admin queue is out of service. It has lost its queues then, so commands would wait for their deadlines.
func (c *Controller) checkStatus() {
	if c.Err() != nil {
		return
	}
	gen := c.Generation() // before what it stands for: a reset meanwhile may have mended that
	broken := c.AdminErr()
	csts := c.CSTS()
	switch {
	case csts.Gone() || csts.CFS():
		c.Recover(gen, fmt.Errorf("%v", csts))
	case !csts.RDY():
		c.disabledByOthers(gen, csts)
	case broken != nil:
		c.Recover(gen, broken)
	}
}

// Close closes what is attached, shuts the controller down normally (CC.SHN) and frees its memory. The volatile write cache is on
// the medium when it returns nil.
func (c *Controller) Close() error {
	c.closeOnce.Do(func() {
		close(c.closing)
		<-c.watchDone
		var errs []error
		for _, q := range c.queuePairs() {
			errs = append(errs, q.Close())
		}
		c.resetMu.Lock() // no reset meanwhile
		defer c.resetMu.Unlock()
		if c.Err() == nil {
			errs = append(errs, c.shutdown(nvme.SHNNormal))
		} else {
			c.t.Reset() // so that it accesses memory no more
		}
		if l, ok := c.t.(Leaver); ok {
			l.OnLeave(nil)
		}
		gone := errors.New("nvme controller is closed")
		c.failure.CompareAndSwap(nil, &gone)
		c.admin.Lock()
		defer c.admin.Unlock()
		c.aq.broken = gone
		errs = append(errs, c.aq.d.Close(), c.closeHostBuffer())
		switch {
		case c.unmapHangs.Load(): // memory of the spare may be mapped yet
		case c.failover.Load() != nil:
			errs = append(errs, c.Runtime().Close()) // Config.Runtime has failed: no call of it
		case !c.runtimeFailed.Load():
			errs = append(errs, c.copies.Close())
		}
		c.closeErr = errors.Join(errs...)
	})
	return c.closeErr
}

const shutdownTimeout = 10 * time.Second
