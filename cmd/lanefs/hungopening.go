package main

import (
	"errors"
	"log/slog"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/gpu/calls"
)

// A GPU may open well and hang after that, before the mount is there: when its lanes, its copy engine or the pool are set up. Each call has its bound then (gpu/bounded), and what is open is
// closed without another one. A mount that has chosen the GPU itself (auto) begins anew on the CPU; one that was told to use it fails, with the call's name.

// hung is why a GPU of the drive answers no more, nil if all do.
func (c *drive) hung() error { return whichHangs(append([]gpu.Runtime{c.rt}, c.more...)) }

func whichHangs(gpus []gpu.Runtime) error {
	for _, rt := range gpus {
		if b, ok := rt.(*bounded.Runtime); ok && b.Hung() != nil {
			return b.Hung()
		}
	}
	return nil
}

// closing is what has gone wrong while something was closed whose GPUs these are. Of one that hangs all is left until the process ends, and nothing of the volume is.
func closing(gpus []gpu.Runtime, log *slog.Logger, errs []error) error {
	err := errors.Join(errs...)
	if err == nil || whichHangs(gpus) == nil && !errors.Is(err, calls.ErrHangs) {
		return err
	}
	log.Warn("the GPU hangs: what it has is left until the process ends", "why", oneLine(err))
	return nil
}

// undo closes what an opening has opened that has failed with err. What fails on a GPU that hangs fails by that.
func undo(err, why error, closes func() error) error {
	closed := closes()
	if why != nil {
		return why
	}
	return errors.Join(err, closed)
}

// onAnyway opens by open, which a signal may end, and once more on the CPU if a GPU hangs that auto has chosen. An error of open leaves nothing open.
func (cfg *mountConfig) onAnyway(log *slog.Logger, open func() error) error {
	stop, end := stopped()
	defer end()
	cfg.stop = stop
	err := open()
	auto := (cfg.GPU == "auto" || cfg.GPU == "") && len(cfg.GPUs) == 0
	if !errors.Is(err, calls.ErrHangs) || !auto || isClosed(cfg.stop) {
		return err
	}
	log.Warn("the lanes run on the CPU", "why", oneLine(err))
	cfg.GPU = "host"
	return open()
}
