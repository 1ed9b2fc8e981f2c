package engine

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// driver is how the kernel code of a lane gets to run. Its methods are called with lane.drive held.
type driver interface {
	// reset runs lanefs_reset on the lane and waits for its end. What was in flight is answered.
	reset(l *lane) error
	// kick sees to it that the kernel code looks at the lane's rings and its completion queue: it has, or it will
	// without being asked again.
	kick(l *lane) error
	// sync returns when no kernel runs on the lane: its status and counters are current then.
	sync(l *lane) error
	// answered returns when the lane, told to fail, has answered all that it has, and the results were drained.
	answered(l *lane) error
	// ticks and duration convert to and from the clock by which the lane counts.
	ticks(d time.Duration) uint64
	duration(ticks uint64) time.Duration
}

// newDriver chooses by what the runtime can do: steps on the caller's thread, or resident kernels; batches if asked for.
func newDriver(e *Engine, w *resources) (driver, error) {
	base := launcher{e: e, clockHz: w.clockHz, block: one}
	step, batch, resident := kernels.StepKernel, kernels.BatchKernel, kernels.ResidentKernel
	if e.cfg.Team == TeamWave {
		step, batch, resident = kernels.WaveStepKernel, kernels.WaveBatchKernel, kernels.WaveResidentKernel
		base.block.X = uint32(e.c.Runtime().Facts().WaveSize)
	}
	name := step
	switch {
	case e.cfg.Batch:
		name = batch
	case !e.c.Runtime().Facts().CallerDriven:
		name = resident
	}
	var err error
	if base.resetFn, err = w.module.Function(kernels.ResetKernel); err != nil {
		return nil, err
	}
	if base.fn, err = w.module.Function(name); err != nil {
		return nil, err
	}
	switch name {
	case batch:
		return &batchDriver{base}, nil
	case resident:
		return &residentDriver{launcher: base}, nil
	}
	return &stepDriver{base}, nil
}

// launcher is what all drivers share.
type launcher struct {
	e       *Engine
	clockHz uint64
	resetFn gpu.Function
	fn      gpu.Function // what resources on a lane
	block   gpu.Dim3     // the threads of a lane: a launch is for one
}

var one = gpu.Dim3{X: 1, Y: 1, Z: 1}

// launchTimeout bounds a launch that is waited for.
const launchTimeout = 10 * time.Second

func (d launcher) reset(l *lane) error {
	if err := l.stream.Wait(launchTimeout); err != nil {
		return fmt.Errorf("waiting for the lane's kernel: %w", err)
	}
	l.args[0], l.args[1] = uint64(l.self), 1
	if err := l.stream.Launch(d.resetFn, one, one, l.args[:2]...); err != nil {
		return err
	}
	return l.stream.Wait(launchTimeout)
}

func (d launcher) sync(l *lane) error { return l.stream.Wait(launchTimeout) }

func (d launcher) answered(l *lane) error {
	// The second round is for a kernel that was already leaving when the command came.
	for range 2 {
		if err := d.e.drv.kick(l); err != nil {
			return err
		}
		if err := l.stream.Wait(launchTimeout); err != nil {
			return err
		}
		if l.drain(); l.outstanding() == 0 {
			break
		}
	}
	return nil
}

// Kernels that run on their own count by the device's clock. Steps are given the time, in nanoseconds.
func (d launcher) ticks(t time.Duration) uint64 {
	if hz := d.clockHz; hz != 0 && hz != 1e9 {
		whole, part := uint64(t/time.Second), uint64(t%time.Second)
		return whole*hz + part*hz/1e9
	}
	return uint64(t)
}

func (d launcher) duration(ticks uint64) time.Duration {
	if hz := d.clockHz; hz != 0 && hz != 1e9 {
		return time.Duration(ticks/hz)*time.Second + time.Duration(ticks%hz*1e9/hz)
	}
	return time.Duration(ticks)
}

// stepDriver runs one non-blocking step on the caller's thread: the host runtime.
type stepDriver struct{ launcher }

func (d *stepDriver) kick(l *lane) error {
	l.args[0], l.args[1], l.args[2] = uint64(l.self), 1, uint64(time.Since(d.e.start))
	return l.stream.Launch(d.fn, one, d.block, l.args[:3]...)
}

// batchDriver launches a kernel that steps until the batch is done, for at most batchTicks; the next kick finds it ended
// and launches again while anything is outstanding. It resources on every runtime, and holds the device only while there is
// something to do.
type batchDriver struct{ launcher }

const (
	batchTime = 2 * time.Millisecond
	// A software controller that resources on the caller's thread cannot complete anything while the kernel runs there.
	batchTimeOwn = time.Microsecond
)

func (d *batchDriver) kick(l *lane) error {
	done, err := l.stream.Done()
	if err != nil || !done {
		return err
	}
	if l.outstanding() == 0 && atomic.LoadUint32(&l.control.Command) == kernels.CommandRun {
		return nil
	}
	limit := batchTime
	if d.e.c.Runtime().Facts().CallerDriven {
		limit = batchTimeOwn
	}
	l.args[0], l.args[1], l.args[2] = uint64(l.self), 1, d.ticks(limit)
	return l.stream.Launch(d.fn, one, d.block, l.args[:3]...)
}
