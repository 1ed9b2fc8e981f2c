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
// one wave, on the lane's own stream. A lane without work parks after residentIdle and its kernel ends; the next kick launches it again.
// In any case it ends after residentLimit, well before a driver's lockup timer, and so that whoever waits for the device
// waits no longer.
//
// While kernels run, calls that wait for the device do not return. quiesced lets them pass: it parks every lane, and
// launches wait until it is over.
type residentDriver struct {
	launcher
	// launches is held for reading by launches, for writing while no kernel may run. It is a leaf, but for the device's calls.
	launches sync.RWMutex
}

const (
	residentIdle  = 2 * time.Millisecond
	residentLimit = 250 * time.Millisecond
	// residentLanes is how many kernels may be resident: each needs a hardware connection of its own, of which an NVIDIA
	// device has 32, copies included, or it waits for the end of another that does not end.
	residentLanes = 16
	// checkEvery is how many kicks pass before the clock is read, checkInterval the time between two looks at whether the kernel
	// still runs: each asks the driver, which takes microseconds.
	checkEvery    = 256
	checkInterval = time.Millisecond
	// residentSpin is how long the CPU polls without giving its thread away: longer than a command takes. To yield may mean to
	// wake other threads, and to be moved to one. spinShare is which part of the CPUs may do so at a time.
	residentSpin = 20 * time.Microsecond
	spinShare    = 4
)

// pace gives the waiter of a caller that drives a lane, who calls its end.
func (e *Engine) pace() (w poll.Waiter) {
	if e.cfg.Batch || e.c.Runtime().Facts().CallerDriven {
		return w
	}
	w.Among = &e.spinning
	if n := w.Among.Add(1); int(n) <= runtime.GOMAXPROCS(0)/spinShare {
		w.Spin = residentSpin
	}
	return w
}

// kick reads one word: RUNNING and PARKING mean that the kernel will look, or look again, at what was published before
// (kernels/lifecycle.h). The seq that publishes a work item was stored with sequential consistency, so it comes before
// this load.
func (d *residentDriver) kick(l *lane) error {
	switch atomic.LoadUint32(&l.status.State) {
	case kernels.StateRunning, kernels.StateParking:
		if l.kicks++; l.kicks%checkEvery == 0 {
			return d.checkKernel(l)
		}
		return nil
	}
	if l.outstanding() == 0 && atomic.LoadUint32(&l.control.Command) == kernels.CommandRun {
		return nil
	}
	d.launches.RLock()
	defer d.launches.RUnlock()
	// Until the kernel says so itself: the next kick must not launch again.
	atomic.StoreUint32(&l.status.State, kernels.StateRunning)
	l.heartbeat, l.heartbeatAt = 0, time.Now()
	l.args = [4]uint64{uint64(l.self), 1, d.ticks(residentIdle), d.ticks(residentLimit)}
	if err := l.stream.Launch(d.fn, one, d.block, l.args[:]...); err != nil {
		atomic.StoreUint32(&l.status.State, kernels.StateParked)
		return err
	}
	return nil
}

// checkKernel finds, once in a while, a kernel that has died or hangs: one that runs says so at least every residentIdle.
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
	if beat := atomic.LoadUint64(&l.status.Time); beat != l.heartbeat {
		l.heartbeat, l.heartbeatAt = beat, now
	}
	if silent := now.Sub(l.heartbeatAt); silent > l.e.cfg.HangTimeout {
		return fmt.Errorf("the lane's kernel hangs: it has taken no step for %v", silent.Round(time.Millisecond))
	}
	return nil
}

// sync parks the lane. What it has been told to do otherwise, to fail above all, stays as it is.
func (d *residentDriver) sync(l *lane) error {
	if l.hung.Load() {
		return errors.New("the lane's kernel has failed")
	}
	d.launches.Lock()
	defer d.launches.Unlock()
	return park(l)
}

// park ends the lane's kernel and waits for its end. No launch may happen meanwhile.
func park(l *lane) error {
	atomic.CompareAndSwapUint32(&l.control.Command, kernels.CommandRun, kernels.CommandPark)
	err := l.stream.Wait(launchTimeout)
	atomic.CompareAndSwapUint32(&l.control.Command, kernels.CommandPark, kernels.CommandRun)
	return err
}

func (d *residentDriver) reset(l *lane) error {
	if err := d.sync(l); err != nil {
		return fmt.Errorf("parking the lane's kernel: %w", err)
	}
	return d.launcher.reset(l)
}

// answered waits until the lane has answered all it has, which it does by itself once it was told to fail.
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
		if err := park(l); err != nil {
			return fmt.Errorf("parking lane %d: %w", l.index, err)
		}
	}
	return f()
}
