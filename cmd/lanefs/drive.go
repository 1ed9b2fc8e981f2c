package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime"
	"slices"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/pcie"
	"github.com/lanefs/lanefs/nvmeq/softctl"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// drive is a runtime and an NVMe controller that it drives: what identify needs, and the lower half of a mount.
type drive struct {
	rt     gpu.Runtime
	more   []gpu.Runtime        // further GPUs, with lanes and a pool each
	cpu    gpu.Runtime          // of lanes on the CPU beside those on a GPU; nil: there are none
	copy   *copyengine.Engine   // of a software controller with a GPU
	copies []*copyengine.Engine // of the further GPUs, likewise
	ctl    controller.Transport
	nvme   *controller.Controller
	bar    *barMemory // nil: device memory is the runtime's own
	choice engine.Choice
	shared bool // runtimes, cpu and bar are another drive's, which closes them

	release func() // ends the claim on a namespace that other controllers may have; nil: there is none
}

// spareRuntime runs the lanes when a GPU fails: the CPU does. Lanes that run there already have none.
func spareRuntime(rt gpu.Runtime) func() (gpu.Runtime, error) {
	if rt.Facts().CallerDriven {
		return nil
	}
	return func() (gpu.Runtime, error) { return openHost(host.Options{}) }
}

// gpuTransfer is what a command of the software controller carries at most into a GPU's memory, in bytes. One of this size is
// copied while the rest of it is read, and costs lanes and copy engine less than eight of 1 MiB (docs/PERFORMANCE.md).
const gpuTransfer = 8 << 20

// openController opens the runtime, unless it is that of the drive beside, and the controller of cfg.Device: a PCI function's through VFIO,
// an image file's in software.
func openController(cfg *mountConfig, beside *drive, log *slog.Logger) (c drive, err error) {
	defer func() {
		if err != nil {
			err = undo(err, c.hung(), c.Close)
		}
	}()
	if beside != nil {
		c = drive{rt: beside.rt, more: beside.more, cpu: beside.cpu, bar: beside.bar, shared: true}
	} else if err := c.openRuntime(cfg, log); err != nil {
		return c, err
	}
	if (cfg.cpuLanes() > 0 || cfg.lateLanes()) && !c.rt.Facts().CallerDriven && c.cpu == nil {
		if c.cpu, err = openHost(host.Options{}); err != nil {
			return c, err
		}
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
	defer func() { err = explainVirtual(cfg.Device, err) }()
	err = c.open(cfg, beside, controller.Config{Log: log, Queues: cfg.queues(), Spare: spareRuntime(c.rt), SpareReads: cfg.GPUError == "ro"})
	if err == nil { // the lanes may have left a GPU that hangs
		err = c.hung()
	}
	return c, err
}

// claimNamespace keeps a namespace that other controllers may have, too, from their users, until Close. That there is none with that number
// is for others to say.
func (c *drive) claimNamespace(nsid uint32) error {
	ns, err := c.nvme.Namespace(nsid)
	id := c.nvme.Identify()
	if _, ok := c.ctl.(*pcie.Function); !ok || err != nil || c.release != nil || !id.Several() || !ns.Identify.Shared() {
		return nil
	}
	c.release, err = pcie.ClaimShared(pci.System{}, pcie.Shared{Serial: id.SN, Model: id.MN, NSID: nsid})
	if err != nil {
		return fmt.Errorf("device %s: %w", c.nvme.Name(), err)
	}
	return nil
}

// queues is how many queue pairs the mount asks for: after a GPU has failed its lanes need others.
func (cfg *mountConfig) queues() int {
	return max(64, 2*(cfg.Lanes+cfg.cpuLanes())) * max(1, len(cfg.GPUs))
}

// openImage opens the software controller over an image file. The GPU's copy engine moves what a GPU's queues ask for.
func (c *drive) openImage(cfg *mountConfig, log *slog.Logger) (err error) {
	opt := softctl.Options{BlockSize: cfg.LBA, ReadOnly: cfg.ReadOnly, NoLone: cfg.NoShortcut, Queues: max(cfg.Lanes, softctl.DefaultQueues)*max(1, len(cfg.GPUs)) + cfg.cpuLanes(), Log: log}
	if !c.rt.Facts().CallerDriven {
		opt.Queues *= 2 // after a GPU has failed its lanes need other queue pairs
		if c.copy, err = copyengine.New(c.rt); err != nil {
			return err
		}
		opt.Mover = c.copy
		if len(c.more) > 0 {
			if opt.Mover, err = c.openCopies(); err != nil {
				return err
			}
		}
		// A thread for each lane: one with two would finish last.
		opt.Threads, opt.MaxTransfer = min(cmp.Or(cfg.Lanes, 16), runtime.NumCPU()), gpuTransfer
	}
	ctl, err := softctl.Open(cfg.Device, opt)
	if err != nil {
		return err
	}
	c.ctl = ctl
	return nil
}

// openCopies opens the copy engines of the further GPUs, and joins all.
func (c *drive) openCopies() (copyengine.Mover, error) {
	for _, rt := range c.more {
		e, err := copyengine.New(rt)
		if err != nil {
			return nil, err
		}
		c.copies = append(c.copies, e)
	}
	return copyengine.NewSeveral(append([]*copyengine.Engine{c.copy}, c.copies...)), nil
}

// open opens the controller itself, in the best way of the ladder that works. Data is in the same memory as that of the drive beside.
func (c *drive) open(cfg *mountConfig, beside *drive, nc controller.Config) (err error) {
	nc.Runtime, nc.Transport = c.rt, c.ctl
	if m := cfg.MemoryMode; m != nil && !m.Ordered() && isFunction(cfg.Device) {
		nc.Log.Info("completions and data are in different memories: reads cost a round trip to the drive more, after which their data is there", "memory-mode", *m)
	}
	if isFunction(cfg.Device) {
		nc.HostBuffer = hostBuffer(media.MemoryLimit())
	}
	ladder := c.ladder(cfg)
	if beside != nil {
		ladder.Modes = slices.DeleteFunc(ladder.Modes, func(m controller.MemoryMode) bool { return (m^beside.choice.Mode)&controller.ModeData != 0 })
	}
	c.nvme, c.choice, err = engine.OpenBest(nc, ladder, cfg.engine(), cfg.namespace())
	if err == nil {
		for _, e := range c.copyEngines() {
			e.OnStuck(c.nvme.LeaveRuntime)
		}
	}
	return err
}

// copyEngines are those of the controller, none where it is no software, or the CPU copies.
func (c *drive) copyEngines() (all []*copyengine.Engine) {
	if c.copy != nil {
		all = append(all, c.copy)
	}
	return append(all, c.copies...)
}

// Close shuts the controller down: its caches are on the medium when it returns nil.
func (c *drive) Close() error {
	var errs []error
	gpus, log := append([]gpu.Runtime{c.rt}, c.more...), slog.New(slog.DiscardHandler)
	if c.nvme != nil {
		log = c.nvme.Log()
		errs = append(errs, c.nvme.Close())
		if c.nvme.RuntimeFailed() { // closing it may not return; the process ends soon
			c.copy, c.rt, c.copies, c.more = nil, nil, nil, nil
		}
	}
	if c.ctl != nil {
		errs = append(errs, c.ctl.Close())
	}
	if c.release != nil {
		c.release()
	}
	if c.copy != nil {
		errs = append(errs, c.copy.Close())
	}
	for _, e := range c.copies {
		errs = append(errs, e.Close())
	}
	if c.shared {
		*c = drive{}
		return closing(gpus, log, errs)
	}
	for _, rt := range c.more {
		errs = append(errs, rt.Close())
	}
	if c.cpu != nil {
		errs = append(errs, c.cpu.Close())
	}
	if c.rt != nil {
		errs = append(errs, c.rt.Close())
	}
	errs = append(errs, c.bar.close())
	*c = drive{}
	return closing(gpus, log, errs)
}
