package main

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/md"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/blockdev/partition"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/schedidle"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// stack is all that stands below the mount, opened from the bottom up and closed from the top down.
type stack struct {
	unit                        // the only one, or the first of an array
	others    []*unit           // of an array
	array     *md.Device        // nil: the volume is on the unit itself
	arrayPart *partition.Device // nil: all of the array
	vol       *ext4.FS
}

// unit is a namespace and what drives it. Those of an array have a runtime and buffers in common.
type unit struct {
	cfg *mountConfig // its own
	drive
	eng  *engine.Engine
	dev  *namespace.Namespace
	part *partition.Device // nil: all of dev
}

// openDevice opens what stands below the volume.
func openDevice(cfg *mountConfig, log *slog.Logger) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			err = undo(err, s.hung(), s.Close)
		}
	}()
	var on []namespace.On
	for i, one := range cfg.units() {
		u, beside := &s.unit, (*drive)(nil)
		if i > 0 {
			u, beside = &unit{}, &s.drive
			s.others = append(s.others, u)
		}
		if err := u.open(one, beside, log); err != nil {
			return s, err
		}
		if err := u.claimNamespace(one.namespace()); err != nil {
			return s, err
		}
		on = append(on, namespace.On{Engine: u.eng, NSID: one.namespace()})
	}
	devs, err := namespace.OpenAll(on, namespace.Options{Pinned: cfg.pinned(media.MemoryLimit()), Log: log})
	if err != nil {
		return s, err
	}
	for i, u := range s.all() {
		u.dev = devs[i]
	}
	for _, u := range s.all() {
		if u.part, err = openPart(u.dev, u.cfg, log); err != nil {
			return s, err
		}
	}
	if err := s.assemble(cfg, log); err != nil {
		return s, err
	}
	return s, s.hung()
}

// open opens the controller and its lanes, on the runtime of another unit's drive if it stands beside one.
func (u *unit) open(cfg *mountConfig, beside *drive, log *slog.Logger) (err error) {
	u.cfg = cfg
	if u.drive, err = openController(cfg, beside, log); err != nil {
		return err
	}
	ec := cfg.engine()
	ec.Doorbell = u.choice.Doorbell
	ec.CPU, ec.More = u.cpu, u.more
	if u.copy != nil {
		ec.MaxTransfer = gpuTransfer
		if cfg.Lanes == 0 && ec.CPULanes > 0 {
			ec.Lanes, ec.HostOnCPU = imageLanes, true
		}
	}
	if cfg.lateLanes() {
		ec.CPULanes = u.lateLanes()
	}
	u.eng, err = engine.New(u.nvme, ec)
	return err
}

// hostBuffer is how many bytes of the host's memory the drives have for themselves.
func (s *stack) hostBuffer() int64 {
	n := s.nvme.HostBuffer()
	for _, u := range s.others {
		n += u.nvme.HostBuffer()
	}
	return n
}

// imageLanes are those of a GPU for an image, if lanes= does not say: as long as there are lanes on the CPU they have nothing to do. More of them poll the
// host's memory when they have, over the bus that the data takes: with 16 a file of 4 GiB was read at 92 % of a plain copy's speed, with 4 at 95 % (H100).
const imageLanes = 4

// mostCPULanes are beside a GPU's where an image is mounted, for each GPU, if lanes= does not say: for what the GPU has no part in, and while it is late.
const mostCPULanes = 16

// mostLateLanes are those on the CPU beside a GPU's where a PCI function is mounted, if lanes= does not say: a mount that waited for its slice of a GPU that is
// busy would answer in milliseconds. More do not help, since one has many requests under way.
const mostLateLanes = 4

// lateLanes says whether a mount may have them.
func (cfg *mountConfig) lateLanes() bool {
	return isFunction(cfg.Device) && cfg.Lanes+cfg.CPULanes == 0 && !cfg.Batch
}

// lateLanes is how many there are: a quarter of the controller's queue pairs at most.
func (u *unit) lateLanes() int { return min(mostLateLanes, u.nvme.Queues()/4) }

// cpuLanes is how many lanes on the CPU stand beside those on a GPU, but for lateLanes.
func (cfg *mountConfig) cpuLanes() int {
	if cfg.Lanes+cfg.CPULanes > 0 || cfg.Batch || isFunction(cfg.Device) {
		return cfg.CPULanes
	}
	n := max(1, len(cfg.GPUs))
	return min(max(4*n, runtime.NumCPU()), mostCPULanes*n) // fewer, and one GPU's share of them would be a single lane
}

// engine is the configuration of the mount's lanes, without the route of their doorbells.
func (cfg *mountConfig) engine() engine.Config {
	ec := engine.Config{Lanes: cfg.Lanes, CPULanes: cfg.cpuLanes(), Team: engine.TeamWave, Batch: cfg.Batch, BeforeThreads: schedidle.LeaveHere}
	if cfg.Depth > 0 {
		ec.Depth = cfg.Depth + 1 // a queue holds one command fewer than it has entries
	}
	if cfg.Thread {
		ec.Team = engine.TeamThread
	}
	return ec
}

func (cfg *mountConfig) namespace() uint32 { return max(cfg.NSID, 1) }

func openStack(cfg *mountConfig, log *slog.Logger, tell func(ext4.Progress)) (*stack, error) {
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
	s.vol, err = ext4.Open(s.disk(), ext4.Options{
		Atime:      atime,
		NoDirAtime: slices.Contains(cfg.Kernel, "nodiratime"),
		Errors:     cfg.Errors,
		Panic: func(err error) { // as a crash would: nothing more is written, the mount answers ENOTCONN
			log.Error("the daemon ends, as errors=panic asks for when an error is met", "device", cfg.Device, "error", oneLine(err))
			os.Exit(1)
		},
		ReadOnly: cfg.ReadOnly, NoRecovery: cfg.NoRecovery, CommitInterval: cfg.Commit, Discard: cfg.Discard,
		CacheSize: cfg.Cache, Log: log, Progress: tell,
	})
	if errors.Is(err, blockdev.ErrNoSpace) {
		err = cfg.withStores(err)
	}
	if small := (*ext4.SmallBlocksError)(nil); errors.As(err, &small) {
		err = cfg.withSmallerBlocks(err, small.Volume)
	}
	if err != nil {
		err = undo(err, s.hung(), s.Close)
	}
	return s, err
}

// Close makes everything durable and lets go of the device. The first error is the one that matters; all are reported.
func (s *stack) Close() error {
	var errs, below []error
	gpus := append([]gpu.Runtime{s.rt}, s.more...)
	if why := s.hung(); why != nil { // the lanes may have no request that would tell
		s.leaveGPU(why)
	}
	if s.vol != nil {
		errs = append(errs, s.vol.Close())
	}
	if s.arrayPart != nil {
		errs = append(errs, s.arrayPart.Close())
	}
	if s.array != nil {
		errs = append(errs, s.array.Close())
	}
	all := s.all()
	s.askGPUs()
	s.tellFailure()
	for _, u := range all {
		if u.part != nil {
			errs = append(errs, u.part.Close())
		}
		if u.dev != nil {
			errs = append(errs, u.dev.Close())
		}
	}
	log := slog.New(slog.DiscardHandler)
	for _, u := range all {
		if u.eng != nil {
			below = append(below, u.eng.Close())
			log = u.nvme.Log()
		}
	}
	s.tellFailure()
	slices.Reverse(all) // the first has what they have in common
	for _, u := range all {
		below = append(below, u.drive.Close())
	}
	errs = append(errs, closing(gpus, log, below))
	*s = stack{unit: unit{cfg: s.cfg}}
	return errors.Join(errs...)
}

// askGPUs finds a GPU that has failed unnoticed, since no request went by its lanes. What is to be closed has nothing to do with it but that its memory would be freed.
func (s *stack) askGPUs() {
	for _, u := range s.all() {
		if u.eng == nil || u.nvme.RuntimeFailed() {
			continue
		}
		if err := u.nvme.Quiesced(func() error { return nil }); err != nil {
			u.nvme.Log().Warn("the GPU does not end its kernels: its memory is left until the process ends", "device", u.cfg.Device, "why", oneLine(err))
			u.nvme.FailRuntime()
		}
	}
}

// tellFailure tells all units of the runtime that has failed one: none frees memory of it, or closes it, which may not return.
func (s *stack) tellFailure() {
	if !s.runtimeFailed() {
		return
	}
	for _, u := range s.all() {
		if u.nvme != nil {
			u.nvme.FailRuntime()
		}
	}
}

// runtimeFailed says that the lanes' runtime has failed, or one of several: which is not asked.
func (s *stack) runtimeFailed() bool {
	return slices.ContainsFunc(s.all(), func(u *unit) bool { return u.nvme != nil && u.nvme.RuntimeFailed() })
}
