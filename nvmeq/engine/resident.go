package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
)

// residentDriver keeps a kernel on the device for each lane that has something to do: one launch of one thread or
// one wave, on the lane's own stream. Without work the kernel parks after residentIdle and ends; the next kick launches it again.
// In any case it ends after residentLimit: well before the GPU driver's lockup timer, and so that a call that waits for the device
// does not wait longer.
//
// While kernels run, calls that wait for the device do not return. quiesced makes room for them: it parks every lane, and
// launches wait until the call has returned.
type residentDriver struct {
	launcher
	// launches is held for reading by launches, for writing while no kernel may run. It is a leaf: only calls of the
	// runtime are made with it.
	launches sync.RWMutex
}

const (
	residentIdle  = 2 * time.Millisecond
	residentLimit = 250 * time.Millisecond
	// residentLanes is how many kernels may be resident. Each needs a hardware queue of its own, or it would wait for the end of
	// another kernel that does not end: an NVIDIA device has 32, those of copies included.
	residentLanes = 16
	// checkEvery is how many kicks pass before the clock is read, checkInterval the time between two checks that the kernel still
	// runs: each is a call of the GPU driver, which takes microseconds.
	checkEvery    = 256
	checkInterval = time.Millisecond
	// residentSpin is how long a caller polls without yielding its thread: longer than a command takes. A yield may wake other
	// threads, and move the goroutine to one of them. At most one spinShare-th of the CPUs may spin at a time.
	residentSpin = 20 * time.Microsecond
	spinShare    = 4
)

// pace is the Waiter of a caller that drives a lane. The caller calls its End.
func (e *Engine) pace() (w poll.Waiter) {
	if e.cfg.Batch || e.runtime().Facts().CallerDriven {
		return w
	}
	w.Among = &e.spinning
	if n := w.Among.Add(1); int(n) <= runtime.GOMAXPROCS(0)/spinShare {
		w.Spin = residentSpin
	}
	return w
}

// kick reads one word: RUNNING and PARKING mean that the kernel will poll, at least once more, what was published before
// (kernels/lifecycle.h). The seq that publishes a work item was stored with sequential consistency, so that store is ordered
// before this load.
func (d *residentDriver) kick(l *lane) error {
	switch atomic.LoadUint32(&l.status.State) {
	case kernels.StateRunning, kernels.StateParking:
		l.kicks++
		if d.e.cpu != nil && l.kicks%watchEvery == 0 && d.silent(l, time.Now()) > l.e.cfg.LateAfter {
			d.e.gpuIsLate()
		}
		if l.kicks%checkEvery == 0 {
			return d.checkKernel(l)
		}
		return nil
	}
	if !l.needsKernel() {
		return nil
	}
	return d.start(l)
}

// start launches the lane's kernel, which is parked.
func (d *residentDriver) start(l *lane) error {
	d.launches.RLock()
	defer d.launches.RUnlock()
	// The kernel stores the same when it starts; until then the next kick must not launch again.
	atomic.StoreUint32(&l.status.State, kernels.StateRunning)
	l.heartbeat = atomic.LoadUint64(&l.status.Time)
	l.args = [4]uint64{uint64(l.self), 1, d.ticks(residentIdle), d.ticks(residentLimit)}
	if err := d.launch(l, l.args[:]...); err != nil {
		atomic.StoreUint32(&l.status.State, kernels.StateParked)
		return err
	}
	l.heartbeatAt = time.Now()
	return nil
}

// checkKernel finds a kernel that has failed or hangs: one that runs stores a heartbeat at least every residentIdle / 64.
func (d *residentDriver) checkKernel(l *lane) error {
	now := time.Now()
	if now.Sub(l.checkedAt) < checkInterval {
		return nil
	}
	l.checkedAt = now
	done, err := l.stream.Done()
	if err != nil {
		return fmt.Errorf("the lane's kernel has failed: %w", err)
	}
	if state := atomic.LoadUint32(&l.status.State); done && state != kernels.StateParked && state != kernels.StateReady {
		return fmt.Errorf("the lane's kernel has ended in state %d without parking", state)
	}
	if silent := d.silent(l, now); silent > l.e.cfg.HangTimeout {
		return fmt.Errorf("the lane's kernel hangs: it has taken no step for %v", silent.Round(time.Millisecond))
	}
	return nil
}

// silent is for how long the lane's kernel has stored no heartbeat, since its launch at most.
func (d *residentDriver) silent(l *lane, now time.Time) time.Duration {
	if beat := atomic.LoadUint64(&l.status.Time); beat != l.heartbeat {
		l.heartbeat, l.heartbeatAt = beat, now
	}
	return now.Sub(l.heartbeatAt)
}

// sync parks the lane. A command other than CommandRun, CommandFail above all, stays as it is.
func (d *residentDriver) sync(l *lane) error { return d.syncWithin(l, launchTimeout) }

func (d *residentDriver) syncWithin(l *lane, limit time.Duration) error {
	if l.hung.Load() {
		return errors.New("the lane's kernel has failed")
	}
	d.launches.Lock()
	defer d.launches.Unlock()
	return park(l, limit)
}

// syncAll parks every lane whose kernel ends within a limit that is for all together.
func (d *residentDriver) syncAll(limit time.Duration) {
	end := time.Now().Add(limit)
	for _, l := range d.e.lanes {
		_ = d.syncWithin(l, max(time.Until(end), 0))
	}
}

// park ends the lane's kernel and waits for its end. No launch may happen meanwhile.
func park(l *lane, limit time.Duration) error {
	atomic.CompareAndSwapUint32(&l.control.Command, kernels.CommandRun, kernels.CommandPark)
	err := l.stream.Wait(limit)
	atomic.CompareAndSwapUint32(&l.control.Command, kernels.CommandPark, kernels.CommandRun)
	return err
}

func (d *residentDriver) reset(l *lane) error {
	if err := d.sync(l); err != nil {
		return fmt.Errorf("parking the lane's kernel: %w", err)
	}
	return d.launcher.reset(l)
}

// answered waits until the kernel has answered all work items, which CommandFail makes it do.
func (d *residentDriver) answered(l *lane) error {
	var w poll.Waiter
	for end := time.Now().Add(launchTimeout); l.outstanding() > 0; w.Idle() {
		if err := d.kick(l); err != nil {
			return err
		}
		l.drain()
		if time.Now().After(end) {
			return fmt.Errorf("the lane's kernel has not answered within %v", launchTimeout)
		}
	}
	return nil
}

// quiesced runs f while none of the engine's kernels runs.
func (d *residentDriver) quiesced(f func() error) error {
	for _, l := range d.e.lanes {
		if l.hung.Load() {
			return fmt.Errorf("lane %d's kernel has failed and may still run", l.index)
		}
	}
	d.launches.Lock()
	defer d.launches.Unlock()
	for _, l := range d.e.lanes {
		atomic.CompareAndSwapUint32(&l.control.Command, kernels.CommandRun, kernels.CommandPark)
	}
	for _, l := range d.e.lanes {
		if err := park(l, launchTimeout); err != nil {
			return fmt.Errorf("parking lane %d: %w", l.index, err)
		}
	}
	return f()
}
