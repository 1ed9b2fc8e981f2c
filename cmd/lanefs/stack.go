package main

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"

	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/cmd/lanefs/internal/mountopt"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/pcie"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// drive is a runtime and an NVMe controller that it drives: what identify needs, and the lower half of a mount.
type drive struct {
	rt     gpu.Runtime
	copy   *copyengine.Engine // of a software controller with a GPU
	ctl    controller.Transport
	nvme   *controller.Controller
	bar    *barMemory // nil: device memory is the runtime's own
	choice engine.Choice
}

// stack is all that stands below the mount, opened from the bottom up and closed from the top down.
type stack struct {
	drive
	eng *engine.Engine
	dev *namespace.Namespace
	vol *ext4.FS
}

// spareRuntime runs the lanes when a GPU fails: the CPU does. Lanes that run there already have none.
func spareRuntime(rt gpu.Runtime) func() (gpu.Runtime, error) {
	if rt.Facts().CallerDriven {
		return nil
	}
	return func() (gpu.Runtime, error) { return host.Open(host.Options{}) }
}

// defaultLanes is the number of queue pairs of a mount without lanes=: one for each CPU, 4 at least, so that requests seldom share one.
func defaultLanes() int { return max(4, runtime.NumCPU()) }

// gpuTransfer is what a command of the software controller carries at most into a GPU's memory, in bytes. One of this size is
// copied while the rest of it is read, and costs lanes and copy engine less than eight of 1 MiB (docs/PERFORMANCE.md).
const gpuTransfer = 8 << 20

// openController opens the runtime, and the controller of cfg.Device: a PCI function's through VFIO, an image file's in software.
func openController(cfg *mountConfig, log *slog.Logger) (c drive, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.openRuntime(cfg, log); err != nil {
		return c, err
	}
	if isFunction(cfg.Device) {
		dev, err := pcie.Open(cfg.Device, vfio.Options{Backend: vfio.Backend(cfg.VFIO), Log: log})
		if err != nil {
			return c, err
		}
		c.ctl = dev
	} else if err := c.openImage(cfg, log); err != nil {
		return c, err
	}
	err = c.open(cfg, controller.Config{Log: log, Queues: mountopt.MaxQueues, Spare: spareRuntime(c.rt), SpareReads: cfg.GPUError == "ro"})
	return c, err
}

// openImage opens the software controller over an image file. The GPU's copy engine moves what a GPU's queues ask for.
func (c *drive) openImage(cfg *mountConfig, log *slog.Logger) (err error) {
	opt := softctl.Options{BlockSize: cfg.LBA, ReadOnly: cfg.ReadOnly, Queues: max(cfg.Lanes, 16), Log: log}
	if !c.rt.Facts().CallerDriven {
		opt.Queues *= 2 // after a GPU has failed its lanes need other queue pairs
		if c.copy, err = copyengine.New(c.rt); err != nil {
			return err
		}
		// A thread for each lane: one with two would finish last.
		opt.Mover, opt.Threads, opt.MaxTransfer = c.copy, min(cfg.engine().Lanes, runtime.NumCPU()), gpuTransfer
	}
	ctl, err := softctl.Open(cfg.Device, opt)
	if err != nil {
		return err
	}
	c.ctl = ctl
	return nil
}

// open opens the controller itself, in the best way of the ladder that works.
func (c *drive) open(cfg *mountConfig, nc controller.Config) (err error) {
	nc.Runtime, nc.Transport = c.rt, c.ctl
	c.nvme, c.choice, err = engine.OpenBest(nc, c.ladder(cfg), cfg.engine(), cfg.namespace())
	return err
}

// Close shuts the controller down: its caches are on the medium when it returns nil.
func (c *drive) Close() error {
	var errs []error
	if c.nvme != nil {
		errs = append(errs, c.nvme.Close())
		if c.nvme.RuntimeFailed() { // closing it may not return; the process ends soon
			c.copy, c.rt = nil, nil
		}
	}
	if c.ctl != nil {
		errs = append(errs, c.ctl.Close())
	}
	if c.copy != nil {
		errs = append(errs, c.copy.Close())
	}
	if c.rt != nil {
		errs = append(errs, c.rt.Close())
	}
	errs = append(errs, c.bar.close())
	*c = drive{}
	return errors.Join(errs...)
}

// openDevice opens what stands below the volume.
func openDevice(cfg *mountConfig, log *slog.Logger) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if s.drive, err = openController(cfg, log); err != nil {
		return s, err
	}
	ec := cfg.engine()
	ec.Doorbell = s.choice.Doorbell
	if s.copy != nil {
		ec.MaxTransfer = gpuTransfer
	}
	if s.eng, err = engine.New(s.nvme, ec); err != nil {
		return s, err
	}
	if cfg.Lanes > s.eng.Lanes() {
		log.Warn("the mount has fewer lanes than lanes= asks for: the controller has no more queue pairs, or the GPU keeps no more kernels",
			"asked", cfg.Lanes, "lanes", s.eng.Lanes())
	}
	if cfg.Depth > s.eng.Depth() {
		log.Warn("the queues are shorter than depth= asks for: the controller's hold no more", "asked", cfg.Depth, "depth", s.eng.Depth())
	}
	opt := namespace.Options{Pinned: cfg.Pinned, Log: log}
	if s.dev, err = namespace.Open(s.eng, cfg.namespace(), opt); err != nil {
		return s, err
	}
	return s, nil
}

// engine is the configuration of the mount's lanes, without the route of their doorbells.
func (cfg *mountConfig) engine() engine.Config {
	ec := engine.Config{Lanes: cfg.Lanes, Team: engine.TeamWave, Batch: cfg.Batch}
	if ec.Lanes == 0 {
		ec.Lanes = defaultLanes()
	}
	if cfg.Depth > 0 {
		ec.Depth = cfg.Depth + 1 // a queue holds one command fewer than it has entries
	}
	if cfg.Thread {
		ec.Team = engine.TeamThread
	}
	return ec
}

func (cfg *mountConfig) namespace() uint32 { return max(cfg.NSID, 1) }

func openStack(cfg *mountConfig, log *slog.Logger) (*stack, error) {
	s, err := openDevice(cfg, log)
	if err != nil {
		return s, err
	}
	atime := ext4.AtimeRelative // FUSE leaves access times to the server
	switch {
	case slices.Contains(cfg.Kernel, "noatime"):
		atime = ext4.AtimeNever
	case cfg.StrictAtime():
		atime = ext4.AtimeAlways
	}
	s.vol, err = ext4.Open(s.dev, ext4.Options{
		Atime:      atime,
		NoDirAtime: slices.Contains(cfg.Kernel, "nodiratime"),
		Errors:     cfg.Errors,
		Panic: func(err error) { // as a crash would: nothing more is written, the mount answers ENOTCONN
			log.Error("the daemon ends, as errors=panic asks for when corruption is met: run e2fsck on the volume", "device", cfg.Device, "error", oneLine(err))
			os.Exit(1)
		},
		ReadOnly: cfg.ReadOnly, NoRecovery: cfg.NoRecovery, CommitInterval: cfg.Commit, Discard: cfg.Discard,
		CacheSize: cfg.Cache, Log: log,
	})
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	return s, err
}

// Close makes everything durable and lets go of the device. The first error is the one that matters; all are reported.
func (s *stack) Close() error {
	var errs []error
	if s.vol != nil {
		errs = append(errs, s.vol.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	if s.eng != nil {
		errs = append(errs, s.eng.Close())
	}
	errs = append(errs, s.drive.Close())
	s.vol, s.dev, s.eng = nil, nil, nil
	return errors.Join(errs...)
}
