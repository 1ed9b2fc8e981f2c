package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/gpu/nap"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/internal/poll"
)

// residentDriver keeps one kernel on the device that runs all lanes, a thread or a wave each, on a stream of its own. A lane without work
// dozes there. When all have dozed for residentIdle the kernel ends, and the next kick launches it again. In any case it ends after
// residentLimit: well before the GPU driver's lockup timer, and so that a call that waits for the device does not wait longer.
//
// A lane that is to be reset, or whose counters are read, is held: its part of the kernel writes the lane back and keeps away from it,
// and the others run on (kernels/lifecycle.h).
//
// While the kernel runs, calls that wait for the device do not return. quiesced makes room for them: it parks all lanes, and
// launches wait until the call has returned.
type residentDriver struct {
	launcher
	stream gpu.Stream    // of the launches
	word   gpu.Addr      // of the launches, in the device's memory
	fits   []blocks      // what the device holds, by the size of a block
	number atomic.Uint64 // of the launch that was last begun

	// starting is held by who looks whether the kernel has ended and launches it: a leaf, only calls of the runtime are made with it.
	starting sync.Mutex
	quiet    bool          // protected by starting: no kernel may be launched
	turn     chan struct{} // of who has the device without kernels: it holds one value then
	stuck    atomic.Bool   // the kernel did not end for the last who wanted that

	resets sync.Mutex // protects setup
	setup  gpu.Stream // for lanefs_reset
}

// blocks is how many blocks of so many lanes may be resident.
type blocks struct{ lanes, n int64 }

const (
	// stuckWait is for who wants the device without kernels after one has not ended within launchTimeout: who closes a mount wants it for each piece of memory.
	stuckWait = 10 * time.Millisecond

	residentIdle  = 2 * time.Millisecond
	residentLimit = 250 * time.Millisecond
	// checkEvery is how many kicks pass before the clock is read, checkInterval the time between two checks that the kernel still
	// runs: each is a call of the GPU driver, which takes microseconds.
	checkEvery    = 256
	checkInterval = time.Millisecond
	// residentSpin is how long a caller polls without yielding its thread: longer than a command takes. A yield may wake other
	// threads, and move the goroutine to one of them. At most one spinShare-th of the CPUs may spin at a time.
	residentSpin = 20 * time.Microsecond
	spinShare    = 4
)

// newResident makes the driver. Half of what the device holds at once is left to other kernels: a lane whose block waited for another's
// end would wait for residentLimit.
func newResident(base launcher, rt gpu.Runtime, setup gpu.Stream) (*residentDriver, error) {
	d := &residentDriver{launcher: base, setup: setup, turn: make(chan struct{}, 1)}
	for lanes := int64(1); lanes*int64(base.block.X) <= kernels.MaxBlock; lanes *= 2 {
		n, err := bounded.Fits(rt, base.fn, gpu.Dim3{X: base.block.X * uint32(lanes), Y: 1, Z: 1})
		if err != nil {
			return nil, err
		}
		d.fits = append(d.fits, blocks{lanes, max(n/2, 1)})
	}
	s, err := gpu.NewUrgentStream(rt)
	d.stream = base.calls.stream(s)
	return d, err
}

func (d *residentDriver) prepare(w *resources, _ int) error {
	d.word = w.own.Addr()
	return nil
}

// most is how many lanes can be resident together.
func (d *residentDriver) most() int {
	most := int64(1)
	for _, b := range d.fits {
		most = max(most, b.lanes*b.n)
	}
	return int(min(most, 1<<16))
}

// shape is the launch of n lanes: in blocks as small as fit, for the lanes of one share a compute unit.
func (d *residentDriver) shape(n int) (grid, block gpu.Dim3) {
	grid, block = one, d.block
	for _, b := range d.fits {
		grid.X, block.X = uint32((int64(n)+b.lanes-1)/b.lanes), d.block.X*uint32(b.lanes)
		if int64(grid.X) <= b.n {
			break
		}
	}
	return grid, block
}

// pace is the Waiter of a caller that drives a lane. The caller calls its End.
func (e *Engine) pace() (w poll.Waiter) {
	if _, ok := e.drv.(*residentDriver); !ok {
		return w
	}
	w.Among = &e.spinning
	if n := w.Among.Add(1); int(n) <= runtime.GOMAXPROCS(0)/spinShare {
		w.Spin = residentSpin
	}
	return w
}

// kick reads one word: RUNNING, PARKING and DOZING mean that the kernel will poll, at least once more, what was published before, or
// that the next kick finds it parked (kernels/lifecycle.h). The seq that publishes a work item was stored with sequential
// consistency, so that store is ordered before this load.
func (d *residentDriver) kick(l *lane) error {
	d.release(l)
	switch atomic.LoadUint32(&l.status.State) {
	case kernels.StateRunning, kernels.StateParking, kernels.StateDozing:
	default:
		if !l.needsKernel() {
			return nil
		}
		begun, err := d.start()
		if errors.Is(err, errQuiet) {
			return nil // the next kick tries again; what takes too long is found by checkHung
		}
		if begun || err != nil {
			return err
		}
	}
	l.kicks++
	if d.e.cpu != nil && l.kicks%watchEvery == 0 && d.silent(l, time.Now()) > l.e.lateAfter() {
		d.e.gpuIsLate()
	}
	if l.kicks%checkEvery == 0 {
		return d.checkKernel(l)
	}
	return nil
}

// errQuiet is start's while somebody has the device without kernels. Who drives a lane does not wait for that: it may last for ever.
var errQuiet = errors.New("no kernel may run now")

// start launches the kernel, unless it runs or is about to; then a lane that is not in it will be when it has ended.
func (d *residentDriver) start() (begun bool, err error) {
	d.starting.Lock()
	defer d.starting.Unlock()
	if d.quiet {
		return false, errQuiet
	}
	if done, err := d.stream.Done(); !done || err != nil {
		return false, err
	}
	d.number.Add(1)
	for _, l := range d.e.lanes {
		// The kernel stores the same when it begins; until then it need not be looked for. A lane that is held is left alone: the kernel
		// does not store its state, neither now nor when it ends, so nobody takes it for held before and for dozing after.
		l.holdMu.Lock()
		if l.holds == 0 {
			atomic.CompareAndSwapUint32(&l.status.State, kernels.StateParked, kernels.StateDozing)
			atomic.CompareAndSwapUint32(&l.status.State, kernels.StateReady, kernels.StateDozing)
		}
		l.holdMu.Unlock()
	}
	grid, block := d.shape(len(d.e.lanes))
	err = d.launch(d.e.lanes, d.stream, grid, block, uint64(d.e.lanes[0].self), uint64(len(d.e.lanes)),
		d.ticks(residentIdle), d.ticks(residentLimit), uint64(d.word), d.number.Load())
	if err != nil {
		for _, l := range d.e.lanes {
			atomic.CompareAndSwapUint32(&l.status.State, kernels.StateDozing, kernels.StateParked)
		}
	}
	return err == nil, err
}

// checkKernel finds a kernel that has failed or hangs: one that runs stores a heartbeat for each lane at least every residentIdle / 32.
func (d *residentDriver) checkKernel(l *lane) error {
	now := time.Now()
	if now.Sub(l.checkedAt) < checkInterval {
		return nil
	}
	l.checkedAt = now
	d.starting.Lock() // else another launch may begin in between
	l.holdMu.Lock()
	held := l.holds > 0 // then the state is not the kernel's, and who holds the lane may be about to say so
	done, err := d.stream.Done()
	state := atomic.LoadUint32(&l.status.State)
	l.holdMu.Unlock()
	d.starting.Unlock()
	if err != nil {
		return fmt.Errorf("the lanes' kernel has failed: %w", err)
	}
	if done && !held && state != kernels.StateParked && state != kernels.StateReady {
		return fmt.Errorf("the lanes' kernel has ended in state %d without parking", state)
	}
	if silent := d.silent(l, now); silent > l.e.cfg.HangTimeout {
		return fmt.Errorf("the lane's kernel hangs: it has taken no step for %v", silent.Round(time.Millisecond))
	}
	return nil
}

// silent is for how long the lane's part of the kernel has stored no heartbeat, since its launch at most, and as far as the process was not stopped.
func (d *residentDriver) silent(l *lane, now time.Time) time.Duration {
	beat, launch := atomic.LoadUint64(&l.status.Time), d.number.Load()
	if beat != l.heartbeat || launch != l.launch {
		l.heartbeat, l.launch, l.silence = beat, launch, nap.Wait{}
	}
	return l.silence.Look(now, l.e.cfg.HangTimeout)
}

// take has the kernel keep away from the lane until giveBack, if it does before the wait is over the limit. Whoever else has taken it does not matter.
func (d *residentDriver) take(l *lane, waited *nap.Wait, limit time.Duration) error {
	if l.hung.Load() {
		return errors.New("the lane's kernel has failed")
	}
	l.holdMu.Lock()
	if l.holds++; l.holds == 1 {
		atomic.AddUint32(&l.control.Command, kernels.HoldBit)
	}
	number := atomic.LoadUint32(&l.control.Command) >> kernels.HoldShift
	l.holdMu.Unlock()
	var w poll.Waiter
	for ; atomic.LoadUint32(&l.status.Held) != number; w.Idle() {
		// A kernel that begins after the hold was asked for answers it before anything else.
		done, err := d.stream.Done()
		if done && err == nil {
			break
		}
		if err == nil && waited.Over(limit) {
			err = fmt.Errorf("the lane's kernel has not given it up within %v", limit)
		}
		if err != nil {
			d.giveBack(l)
			return err
		}
	}
	// The state is not the kernel's any more: a launch may have ended, or begun, without a look at this lane but for the hold.
	for _, was := range []kernels.State{kernels.StateRunning, kernels.StateParking, kernels.StateDozing} {
		atomic.CompareAndSwapUint32(&l.status.State, was, kernels.StateParked)
	}
	return nil
}

func (d *residentDriver) giveBack(l *lane) {
	l.holdMu.Lock()
	if l.holds--; l.holds == 0 {
		atomic.AddUint32(&l.control.Command, kernels.HoldBit)
	}
	l.holdMu.Unlock()
}

// sync takes the lane until the next kick.
func (d *residentDriver) sync(l *lane) error {
	if l.mine {
		return nil
	}
	err := d.take(l, new(nap.Wait), launchTimeout)
	l.mine = err == nil
	return err
}

// release gives the lane back, if sync has taken it.
func (d *residentDriver) release(l *lane) {
	if l.mine {
		l.mine = false
		d.giveBack(l)
		l.silence = nap.Wait{} // it had none while it was held
	}
}

// counted returns when the counters of all lanes are up to date, whoever drives them, or after a limit that is for all together.
func (d *residentDriver) counted(limit time.Duration) {
	var waited nap.Wait
	for _, l := range d.e.lanes {
		if d.take(l, &waited, limit) == nil {
			d.giveBack(l)
		}
	}
}

func (d *residentDriver) reset(l *lane) error {
	if err := d.sync(l); err != nil {
		return fmt.Errorf("parking the lane: %w", err)
	}
	d.resets.Lock()
	defer d.resets.Unlock()
	return d.resetOn(d.setup, l)
}

// answered waits until the kernel has answered all work items, which CommandFail makes it do.
func (d *residentDriver) answered(l *lane) error {
	var w poll.Waiter
	for waited := (nap.Wait{}); l.outstanding() > 0; w.Idle() {
		if err := d.kick(l); err != nil {
			return err
		}
		l.drain()
		if waited.Over(launchTimeout) {
			return fmt.Errorf("the lane's kernel has not answered within %v", launchTimeout)
		}
	}
	return nil
}

func (d *residentDriver) done() (bool, error) { return d.stream.Done() }

func (d *residentDriver) wait(limit time.Duration) error {
	if err := d.stream.Wait(limit); err != nil {
		return fmt.Errorf("waiting for the lanes' kernel: %w", err)
	}
	return nil
}

func (d *residentDriver) finish() error {
	select {
	case d.turn <- struct{}{}:
	case <-time.After(launchTimeout):
		return fmt.Errorf("%w: the device is in use without kernels", errCallHangs)
	}
	defer func() { <-d.turn }()
	return d.withoutKernels(d.e.controls(), func() error { return nil })
}

// turnLook is how often who waits for the turn looks whether the runtime has failed.
const turnLook = 100 * time.Millisecond

// quiesced runs f while none of the engine's kernels runs, or when the runtime has failed. It waits for others that do so, which may last until then.
func (d *residentDriver) quiesced(f func() error) error {
	look := time.NewTicker(turnLook)
	defer look.Stop()
	for mine := false; !mine; {
		select {
		case d.turn <- struct{}{}:
			mine = true
		case <-look.C:
			if d.e.c.RuntimeFailed() {
				return f()
			}
		}
	}
	defer func() { <-d.turn }()
	d.e.statsMu.RLock()
	moved := d.e.drv != driver(d)
	controls := d.e.controls()
	d.e.statsMu.RUnlock()
	if moved {
		return f()
	}
	return d.withoutKernels(controls, f)
}

// withoutKernels is quiesced for who has the turn. A failover may move the lanes meanwhile: it touches nothing but these control words of theirs. A command other than
// CommandRun, CommandFail above all, stays as it is.
func (d *residentDriver) withoutKernels(controls []*kernels.Control, f func() error) error {
	for _, l := range d.e.lanes {
		if l.hung.Load() {
			return fmt.Errorf("lane %d's kernel has failed and may still run", l.index)
		}
	}
	d.setQuiet(true)
	defer d.setQuiet(false)
	for _, c := range controls {
		order(c, kernels.CommandPark, kernels.CommandRun)
	}
	limit := launchTimeout
	if d.stuck.Load() {
		limit = stuckWait
	}
	err := d.wait(limit)
	d.stuck.Store(err != nil)
	for _, c := range controls {
		order(c, kernels.CommandRun, kernels.CommandPark)
	}
	if err != nil {
		return err
	}
	return f()
}

func (d *residentDriver) setQuiet(to bool) {
	d.starting.Lock()
	d.quiet = to
	d.starting.Unlock()
}

func (d *residentDriver) close() error { return d.stream.Close() }
