package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// driver is how the kernel code of a lane gets to run. The caller of its methods holds lane.drive.
type driver interface {
	// most is how many lanes there may be. prepare follows the allocation of w's memory for n of them.
	most() int
	prepare(w *resources, n int) error
	// reset runs lanefs_reset on the lane and waits for its end. No work item is outstanding.
	reset(l *lane) error
	// kick has the kernel code poll the lane's rings and its completion queue: when it returns, that has happened, or a kernel
	// runs that will.
	kick(l *lane) error
	// sync returns when no kernel runs on the lane, nor will before the next kick: status and counters are up to date.
	sync(l *lane) error
	// answered follows CommandFail: it returns when every work item has its result, and the results were drained.
	answered(l *lane) error
	// done says whether no kernel of any lane runs, or will without another kick; wait returns when that is so. finish has them end
	// before: no lane is kicked any more.
	done() (bool, error)
	wait(limit time.Duration) error
	finish() error
	// close follows finish.
	close() error
	// ticks and duration convert to and from the unit of the clock that the kernel reads.
	ticks(d time.Duration) uint64
	duration(ticks uint64) time.Duration
}

// newDriver chooses the driver: batches if Config.Batch says so, else steps on a runtime whose kernels run on the caller's thread,
// else resident kernels.
func newDriver(e *Engine, w *resources) (driver, error) {
	base := launcher{e: e, calls: w.calls, clockHz: w.clockHz, block: one}
	step, batch, resident := kernels.StepKernel, kernels.BatchKernel, kernels.ResidentKernel
	if e.cfg.Team == TeamWave {
		step, batch, resident = kernels.WaveStepKernel, kernels.WaveBatchKernel, kernels.WaveResidentKernel
		base.block.X = uint32(e.runtime().Facts().WaveSize)
	}
	name := step
	switch {
	case e.cfg.Batch:
		name = batch
	case !e.runtime().Facts().CallerDriven:
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
		return &batchDriver{&base}, nil
	case resident:
		d, err := newResident(base, e.runtime(), w.stream)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	return &stepDriver{&base}, nil
}

// launcher is what all drivers share, and all of those with a launch for each lane but kick: each has a stream then.
type launcher struct {
	e       *Engine
	calls   *driverCalls // of all streams; nil where there is no driver
	clockHz uint64
	resetFn gpu.Function
	fn      gpu.Function // the kernel that works on a lane
	block   gpu.Dim3     // the threads of a lane
	streams []gpu.Stream // by lane
}

var one = gpu.Dim3{X: 1, Y: 1, Z: 1}

// launchTimeout bounds a launch that is waited for.
const launchTimeout = 10 * time.Second

func (d *launcher) most() int { return 1 << 16 }

func (d *launcher) prepare(w *resources, n int) error {
	for len(d.streams) < n {
		s, err := d.e.runtime().NewStream()
		if err != nil {
			return err
		}
		d.streams = append(d.streams, d.calls.stream(s))
	}
	return nil
}

func (d *launcher) reset(l *lane) error {
	if err := d.sync(l); err != nil {
		return fmt.Errorf("waiting for the lane's kernel: %w", err)
	}
	return d.resetOn(d.streams[l.index], l)
}

// resetOn runs lanefs_reset on a lane that no kernel runs on.
func (d *launcher) resetOn(s gpu.Stream, l *lane) error {
	if err := s.Launch(d.resetFn, one, one, uint64(l.self), 1); err != nil {
		return err
	}
	return s.Wait(launchTimeout)
}

func (d *launcher) sync(l *lane) error { return d.streams[l.index].Wait(launchTimeout) }

func (d *launcher) answered(l *lane) error {
	// The second round is for a kernel that was already ending when the command was stored.
	for range 2 {
		if err := d.e.drv.kick(l); err != nil {
			return err
		}
		if err := d.sync(l); err != nil {
			return err
		}
		if l.drain(); l.outstanding() == 0 {
			break
		}
	}
	return nil
}

func (d *launcher) done() (bool, error) {
	all := true
	for _, s := range d.streams {
		done, err := s.Done()
		if err != nil {
			return false, err
		}
		all = all && done
	}
	return all, nil
}

func (d *launcher) wait(limit time.Duration) error {
	for i, s := range d.streams {
		if err := s.Wait(limit); err != nil {
			return fmt.Errorf("waiting for the kernel of lane %d: %w", i, err)
		}
	}
	return nil
}

func (d *launcher) finish() error { return d.wait(launchTimeout) }

func (d *launcher) close() error {
	var errs []error
	for _, s := range d.streams {
		errs = append(errs, s.Close())
	}
	d.streams = nil
	return errors.Join(errs...)
}

// ticks converts to the device's clock, which resident kernels and batches read. Steps are given the time, in nanoseconds.
func (d *launcher) ticks(t time.Duration) uint64 {
	if hz := d.clockHz; hz != 0 && hz != 1e9 {
		whole, part := uint64(t/time.Second), uint64(t%time.Second)
		return whole*hz + part*hz/1e9
	}
	return uint64(t)
}

func (d *launcher) duration(ticks uint64) time.Duration {
	if hz := d.clockHz; hz != 0 && hz != 1e9 {
		return time.Duration(ticks/hz)*time.Second + time.Duration(ticks%hz*1e9/hz)
	}
	return time.Duration(ticks)
}

// stepDriver runs one non-blocking step on the caller's thread: the host runtime.
type stepDriver struct{ *launcher }

func (d *stepDriver) kick(l *lane) error {
	l.args[0], l.args[1], l.args[2] = uint64(l.self), 1, uint64(time.Since(d.e.start))
	return d.streams[l.index].Launch(d.fn, one, d.block, l.args[:3]...)
}

// batchDriver launches a kernel that steps until the batch is done, for at most batchTime; a later kick finds that it has ended
// and launches it again while anything is outstanding. It works on every runtime, and occupies the device only while commands
// are under way.
type batchDriver struct{ *launcher }

const (
	batchTime = 2 * time.Millisecond
	// A software controller that works on the caller's thread cannot complete anything while the kernel runs there.
	batchTimeOwn = time.Microsecond
)

func (d *batchDriver) kick(l *lane) error {
	s := d.streams[l.index]
	done, err := s.Done()
	if err != nil || !done {
		return err
	}
	if !l.needsKernel() {
		return nil
	}
	limit := batchTime
	if d.e.runtime().Facts().CallerDriven {
		limit = batchTimeOwn
	}
	l.args[0], l.args[1], l.args[2] = uint64(l.self), 1, d.ticks(limit)
	return d.launch(d.e.lanes[l.index:l.index+1], s, one, d.block, l.args[:3]...)
}
