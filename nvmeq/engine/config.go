package engine

import (
	"fmt"
	"runtime"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
)

// Config is what New needs; every field has a default.
type Config struct {
	Lanes       int           // I/O queue pairs; 0 is one per CPU, at least 4, on a device at most 16, for a block device at least 32. Fewer if controller or device hold fewer
	CPULanes    int           // as many more that run on CPU, beside those on a GPU; none if the lanes run on a CPU anyway
	CPU         gpu.Runtime   // runs them, and is closed after the engine
	More        []gpu.Runtime // further GPUs, each of which gets as many lanes for what is in its memory. Closed after the engine
	HostOnCPU   bool          // of a software controller, those have every command whose data is in host memory, not only short ones
	LateAfter   time.Duration // how old a heartbeat of a GPU's lane may be before batches go to those on the CPU; 0 is 100 µs
	Depth       int           // entries of a queue: 2 to 16384; 0 is 128. At most CAP.MQES
	MaxTransfer int64         // bytes of one command; 0 is 1 MiB. At most MDTS
	Timeout     time.Duration // of one I/O command; 0 is 30 s. A software controller's flush has 20 times that
	HangTimeout time.Duration // how long a lane's kernel may be without a heartbeat; 0 is 5 s
	AbortWait   time.Duration // how long an aborted command may take to end; 0 is 2 s
	Retries     int           // of a failed command; 0 is 3, negative none
	Team        Team          // threads of a device that work on a lane; no difference on a CPU
	Doorbell    DoorbellRoute // how lanes ring
	Batch       bool          // one launch per batch (kernels.BatchKernel) instead of steps or resident kernels
	Trace       bool          // lanes note when the steps of a command happen (Command.Steps); by kernels of their own
	Image       []byte        // the kernels; nil is the embedded image for the runtime's architecture
	// BeforeThreads is called on the caller's goroutine before commands go where threads may begin, which inherit from the caller's, say its scheduling policy (sched(7)): to lanes on a
	// GPU, whose runtime has threads, and to a block device's io_uring, for which the kernel has workers. nil: nothing is.
	BeforeThreads func()
}

// Team is how many threads of a device work on one lane.
type Team uint8

const (
	TeamThread Team = iota // one
	TeamWave               // a whole wave: 32 or 64 that post and poll together
)

const (
	maxDepth    = 16384
	deviceLanes = 16 // unless more are asked for: while one is in use all take room on the device
	loneLanes   = 32 // of a block device each lone command has one, while its caller's thread waits in a system call
	rangePages  = 4  // Dataset Management commands in flight on a lane
)

// fill sets what is zero to its default, and limits the rest to what the controller can do.
func (cfg *Config) fill(c *controller.Controller) error {
	switch {
	case cfg.Lanes < 0 || cfg.CPULanes < 0 || cfg.Depth < 0 || cfg.Depth == 1 || cfg.MaxTransfer < 0 || cfg.Timeout < 0 ||
		cfg.LateAfter < 0 || cfg.AbortWait < 0 || cfg.HangTimeout < 0:
		return fmt.Errorf("nvme: engine of %d lanes, depth %d, transfers of %d bytes, timeout %v: not possible",
			cfg.Lanes, cfg.Depth, cfg.MaxTransfer, cfg.Timeout)
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	lanes := max(4, runtime.NumCPU())
	if !c.Runtime().Facts().CallerDriven {
		lanes = min(lanes, deviceLanes)
	} else if c.LonesWait() {
		lanes = max(lanes, loneLanes)
	}
	def(&cfg.Lanes, lanes)
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
	if cfg.HangTimeout == 0 {
		cfg.HangTimeout = 5 * time.Second
	}
	if cfg.LateAfter == 0 {
		cfg.LateAfter = 100 * time.Microsecond
	}
	if cfg.AbortWait == 0 {
		cfg.AbortWait = 2 * time.Second
	}
	return nil
}
