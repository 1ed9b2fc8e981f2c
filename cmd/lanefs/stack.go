package main

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"

	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/blockdev/partition"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// stack is all that stands below the mount, opened from the bottom up and closed from the top down.
type stack struct {
	drive
	eng  *engine.Engine
	dev  *namespace.Namespace
	part *partition.Device // nil: all of dev
	vol  *ext4.FS
}

// directLanes is that of a block device with lanes on the CPU.
const directLanes = 16

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
	ec.CPU = s.cpu
	if soft, ok := s.ctl.(*softctl.Controller); ok && soft.Direct() && cfg.Lanes == 0 && s.rt.Facts().CallerDriven {
		ec.Lanes = max(ec.Lanes, directLanes) // a lone request keeps its lane while the device works
	}
	if s.copy != nil {
		ec.MaxTransfer = gpuTransfer
	}
	if s.eng, err = engine.New(s.nvme, ec); err != nil {
		return s, err
	}
	opt := namespace.Options{Pinned: cfg.Pinned, Log: log}
	if s.dev, err = namespace.Open(s.eng, cfg.namespace(), opt); err != nil {
		return s, err
	}
	err = s.openPart(cfg, log)
	return s, err
}

// mostCPULanes are beside a GPU's where an image is mounted, if lanes= does not say: for what the GPU has no part in, and while it is late.
const mostCPULanes = 16

// cpuLanes is how many lanes on the CPU stand beside those on a GPU.
func (cfg *mountConfig) cpuLanes() int {
	if cfg.Lanes+cfg.CPULanes > 0 || cfg.Batch || isFunction(cfg.Device) {
		return cfg.CPULanes
	}
	return min(max(4, runtime.NumCPU()), mostCPULanes)
}

// engine is the configuration of the mount's lanes, without the route of their doorbells.
func (cfg *mountConfig) engine() engine.Config {
	ec := engine.Config{Lanes: cfg.Lanes, CPULanes: cfg.cpuLanes(), Team: engine.TeamWave, Batch: cfg.Batch}
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
	s.vol, err = ext4.Open(s.disk(), ext4.Options{
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
	if s.part != nil {
		errs = append(errs, s.part.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.Close())
	}
	if s.eng != nil {
		errs = append(errs, s.eng.Close())
	}
	errs = append(errs, s.drive.Close())
	s.vol, s.part, s.dev, s.eng = nil, nil, nil, nil
	return errors.Join(errs...)
}
