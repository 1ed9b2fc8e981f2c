package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/nvmeq/controller"
)

// Which lanes carry out a batch, where there are lanes on a GPU and on the CPU. Contexts of several processes take turns on an NVIDIA
// GPU, in slices of some 2 ms (docs/PERFORMANCE.md): a lane whose slice is over answers nothing until the next.
//
//	GPU     it answers in time
//	late    a heartbeat of a lane is older than Config.LateAfter, and what the data under way may take: every batch goes to the CPU until the GPU has answered probes in time
//	shared  it answers again: small batches go to the CPU for sharedFor yet, since a large one bears a wait better
//
// Whatever the GPU answers, the CPU has what goes to or comes from a program's host memory (a stage): the GPU has no part in it, and kernels
// of the daemon's would take turns with the program's own, which move the bytes on. Of a software controller, whose commands a CPU carries out
// anyway, it also has the short ones, which the lane's own thread carries out then, so that nobody has to be woken, and with Config.HostOnCPU the long ones in host memory, too; and all
// whose data is in memory of a program on a GPU, or of the pool: copy engines move it, and the program's next kernel would wait for the end of the lanes' slice.
//
// What has been posted to a lane stays there, so nothing is sent twice: it waits for its slice, or for the deadlines of the ladder.
//
// A probe launches the lanes' kernel without work, and looks how long its first heartbeat takes. Probes are made only while batches
// come, so an idle mount costs nothing.
const (
	watchEvery  = 4 // kicks between two looks at the clock
	sharedFor   = 10 * time.Second
	smallBatch  = 64 << 10  // bytes
	longCommand = 256 << 10 // bytes: as gpu/copyengine's gatherLarge
	leastRate   = 16        // bytes a ns that the bus moves at least

	probesInTime   = 3 // in a row: one alone may have met a slice of its own
	firstProbe     = 5 * time.Millisecond
	longestBetween = 80 * time.Millisecond
)

// Chosen is how many batches went to lanes of which kind, and why.
type Chosen struct {
	GPU      uint64 // its lanes answered in time
	Host     uint64 // to the CPU: the data is in a program's host memory
	Software uint64 // to the CPU: commands of a software controller that are short, or whose data is in a program's or the pool's device memory
	Late     uint64 // to the CPU: the GPU's lanes did not
	Small    uint64 // to the CPU: the GPU is shared, and the batch is small
}

// router is the state of the choice.
type router struct {
	late        atomic.Bool
	sharedUntil atomic.Int64 // since Engine.start, in nanoseconds; 0: the GPU was never late
	probing     atomic.Bool  // a goroutine probes
	gpu         atomic.Uint64
	lates       atomic.Uint64
	smalls      atomic.Uint64
	hosts       atomic.Uint64
	softwares   atomic.Uint64
	flying      atomic.Int64 // bytes of the batches under way

	mu     sync.Mutex
	closed bool           // protected by mu: no further goroutine begins
	probes sync.WaitGroup // the goroutine that probes
}

// flight is the bytes of a batch under way.
type flight struct {
	r *router
	n int64
}

func (r *router) begins(cmds []Command) flight {
	n := int64(0)
	for i := range cmds {
		n += int64(cmds[i].Len)
	}
	r.flying.Add(n)
	return flight{r, n}
}

func (f flight) end() { f.r.flying.Add(-f.n) }

// lateAfter is how old a heartbeat may be: a lane's own loads from host memory wait behind the data that is on its way over the bus.
func (e *Engine) lateAfter() time.Duration {
	return e.cfg.LateAfter + time.Duration(e.router.flying.Load()/leastRate)
}

// Chosen reads the counters. All are zero where there are lanes of one kind only.
func (e *Engine) Chosen() Chosen {
	return Chosen{GPU: e.router.gpu.Load(), Late: e.router.lates.Load(), Small: e.router.smalls.Load(), Host: e.router.hosts.Load(),
		Software: e.router.softwares.Load()}
}

// Late says whether the GPU's lanes answer late now.
func (e *Engine) Late() bool { return e.router.late.Load() }

// toCPU says whether a batch goes to the lanes on the CPU. After a failover the GPU's lanes are there too: there is nothing to choose, and the more numerous are used.
func (e *Engine) toCPU(cmds []Command) bool {
	r := &e.router
	if e.c.Failover() != nil {
		return e.CPULanes() >= len(e.lanes)
	}
	count := &r.gpu
	switch {
	case r.late.Load():
		count = &r.lates
		e.probe()
	case e.toLent(cmds):
		count = &r.hosts
	case r.shared(time.Since(e.start)) && isSmall(cmds):
		count = &r.smalls
	case e.c.Simulated() && e.copied(cmds):
		count = &r.softwares
	}
	count.Add(1)
	return count != &r.gpu
}

// shared says whether the GPU was late not long ago.
func (r *router) shared(now time.Duration) bool {
	return int64(now) < r.sharedUntil.Load()
}

func isSmall(cmds []Command) bool {
	n := 0
	for i := range cmds {
		if n += int(cmds[i].Len); n > smallBatch {
			return false
		}
	}
	return true
}

// longest is the command of a batch that moves most: its data is where the batch's is. Beside it there may be the edges of a read, whose data goes to memory of the
// daemon's.
func longest(cmds []Command) *Command {
	c := &cmds[0]
	for i := range cmds {
		if cmds[i].Len > c.Len {
			c = &cmds[i]
		}
	}
	return c
}

// toLent says whether the data of a batch is in a program's host memory.
func (e *Engine) toLent(cmds []Command) bool {
	c := longest(cmds)
	return c.Len > 0 && e.c.Lent(c.Data)
}

// copied says whether a software controller's threads carry out each command of a batch sooner than by way of the GPU's lanes: it is short, or copy engines move its
// data, or a CPU does, and the lanes on the GPU are not for that (Config.HostOnCPU).
func (e *Engine) copied(cmds []Command) bool {
	if e.cfg.HostOnCPU {
		return true
	}
	for i := range cmds {
		if cmds[i].Len >= longCommand && e.c.DeviceAt(cmds[i].Data) == "" {
			return false
		}
	}
	return true
}

// gpuIsLate follows a heartbeat that did not come.
func (e *Engine) gpuIsLate() {
	if !e.router.late.Swap(true) {
		e.probe()
	}
}

// probe begins to probe the GPU, unless that is under way.
func (e *Engine) probe() {
	r := &e.router
	if r.probing.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed && !r.probing.Swap(true) {
		r.probes.Go(e.probeUntilInTime)
	}
}

// close returns when nothing probes any more.
func (r *router) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.probes.Wait()
}

// probeUntilInTime returns when the GPU answers in time again, or when no batch has come for a while: the next one begins anew.
func (e *Engine) probeUntilInTime() {
	r := &e.router
	defer r.probing.Store(false)
	p := probes{pause: firstProbe}
	for !e.closed.Load() && e.c.Err() == nil && e.c.Failover() == nil {
		before := r.lates.Load()
		time.Sleep(p.pause)
		if p.enough(e.probeOnce()) {
			r.sharedUntil.Store(int64(time.Since(e.start) + sharedFor))
			r.late.Store(false)
			return
		}
		if r.lates.Load() == before && p.inTime == 0 {
			return
		}
	}
}

// probes is how the last ones went, and how long it is to the next.
type probes struct {
	inTime int // in a row
	pause  time.Duration
}

// enough says whether the GPU answers in time again, as the next probe ended.
func (p *probes) enough(next probed) bool {
	switch next {
	case probeInTime:
		p.inTime++
	case probeLate:
		p.inTime, p.pause = 0, min(2*p.pause, longestBetween)
	}
	return p.inTime == probesInTime
}

type probed uint8

const (
	probeNone probed = iota // no lane could be probed
	probeInTime
	probeLate
)

// probeOnce probes a lane that nobody drives.
func (e *Engine) probeOnce() probed {
	for _, l := range e.lanes {
		if !l.drive.TryLock() {
			continue
		}
		if e.c.Resetting() || e.closed.Load() {
			l.handOver()
			return probeNone
		}
		d, ok := l.e.drv.(*residentDriver)
		if !ok || l.broken != nil || l.hung.Load() { // which may be for as long as there is no reset
			l.handOver()
			continue
		}
		gen := e.c.Generation()
		found, err := d.probe(l)
		l.handOver()
		if err != nil {
			e.c.Recover(gen, controller.RuntimeError{Err: fmt.Errorf("lane %d: %w", l.index, err)})
		}
		return found
	}
	return probeNone
}

// probe launches the lanes' kernel, unless it runs, and looks whether a heartbeat of the lane comes in time. The caller holds drive.
func (d *residentDriver) probe(l *lane) (probed, error) {
	d.release(l)
	was := atomic.LoadUint64(&l.status.Time)
	if _, err := d.start(); errors.Is(err, errQuiet) {
		return probeNone, nil
	} else if err != nil {
		return probeNone, err
	}
	if err := d.checkKernel(l); err != nil {
		return probeNone, err
	}
	for start := time.Now(); time.Since(start) < l.e.lateAfter(); {
		if atomic.LoadUint64(&l.status.Time) != was {
			return probeInTime, nil
		}
	}
	return probeLate, nil
}
