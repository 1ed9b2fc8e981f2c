// Package bench measures an NVMe namespace through lanes: it sends reads, writes, or both, from a set of queue pairs, for a time or a
// number of commands, and says how many there were and how long they took.
//
// The nouns. A [Job] is what is to be measured. [Run] carries it out on an open controller, and gives a [Result]. A [Report] is what
// one call of `lanefs bench` has measured, a line each. A block is what one command moves; a region is the range of the namespace that
// blocks are taken from.
//
// The flow of a run:
//
//  1. each lane has workers, whose batches together are the lane's depth. A worker has memory for its batch      (parallel)
//  2. prefill: where reads are to be checked, the region is written first, and that is not measured
//  3. a worker chooses blocks; a kernel writes their pattern into its memory; the lane carries the batch out; a kernel checks what was
//     read. Only the lane's part is in the latencies, all of it is in the time                                   (parallel)
//  4. what was written is flushed, read again and checked, by kernels on the device that runs the lanes
//
// The pattern of a block depends on where it is on the device and on the seed alone. So it does not matter in which order blocks were
// written, or how often, and a block that went elsewhere is wrong there.
package bench

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanefs/lanefs/cmd/lanefs/internal/units"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// Job is one measurement.
type Job struct {
	NSID       uint32
	First      uint64 // LBA of the region
	Blocks     uint64 // LBAs of it
	Block      int64  // bytes of a command
	Lanes      int
	Depth      int // commands in flight on a lane
	Queue      int // entries of a queue; 0: one more than Depth
	Batch      int // commands that a worker sends together; 0: Depth
	Reads      int // percent; the others are writes
	Sequential bool
	Time       time.Duration // 0: no limit
	Count      uint64        // commands; 0: no limit
	Verify     bool          // kernels write and check patterns
	Prefill    bool          // the region is written first, for reads to be checked
	Seed       uint64        // of patterns and of what is random
	Steps      bool          // the steps of each command, apart
	Mode       controller.MemoryMode
	Engine     engine.Config // what is not said above: team, doorbell
}

// MaxErrors is how many commands may fail before a run ends.
const MaxErrors = 100

// maxMemory bounds the data of a run, in bytes.
const maxMemory = 4 << 30

// check refuses what cannot be measured.
func (j *Job) check(ns *controller.Namespace) error {
	if j.Batch == 0 || j.Batch > j.Depth {
		j.Batch = j.Depth
	}
	if j.Queue == 0 {
		j.Queue = j.Depth + 1
	}
	switch {
	case j.Block <= 0 || j.Block%ns.BlockSize != 0:
		return fmt.Errorf("blocks of %s: want a multiple of the namespace's %s", units.Bytes(j.Block), units.Bytes(ns.BlockSize))
	case j.units(ns) == 0:
		return fmt.Errorf("the region of %s is smaller than a block of %s", units.Bytes(int64(j.Blocks)*ns.BlockSize), units.Bytes(j.Block))
	case j.Depth >= j.Queue:
		return fmt.Errorf("a queue of %d entries holds %d commands at most, not %d", j.Queue, j.Queue-1, j.Depth)
	case int64(j.Lanes)*int64(j.Depth)*j.Block > maxMemory:
		return fmt.Errorf("%d lanes with %d blocks of %s in flight take %s of memory that stays pinned, more than %s", j.Lanes, j.Depth, units.Bytes(j.Block),
			units.Bytes(int64(j.Lanes)*int64(j.Depth)*j.Block), units.Bytes(maxMemory))
	}
	return nil
}

// units is how many blocks of the job the region has.
func (j *Job) units(ns *controller.Namespace) uint64 { return j.Blocks / uint64(j.Block/ns.BlockSize) }

func (j *Job) writes() bool { return j.Reads < 100 }

// Stage is what a run is at.
type Stage string

const (
	Filling   Stage = "filling"
	Measuring Stage = "measuring"
	Checking  Stage = "checking"
)

// Progress is how far a run has come.
type Progress struct {
	Stage       Stage
	Done, Total uint64 // commands; of Measuring with a time nanoseconds; 0: without end
	Commands    uint64
}

// run is one Run under way.
type run struct {
	j      Job
	c      *controller.Controller
	e      *engine.Engine
	ns     *controller.Namespace
	shift  uint64 // blocks of the namespace in one of the job
	kernel *blocks
	stop   <-chan struct{}

	ended    atomic.Bool   // no worker begins another batch
	next     atomic.Uint64 // of what is done in order
	claimed  atomic.Uint64 // commands that workers have taken on
	done     atomic.Uint64 // commands that have ended
	failed   atomic.Uint64
	wrong    wrongs
	firstErr error // protected by mu
	fatal    error // likewise
	mu       sync.Mutex
	written  []atomic.Uint64 // a bit for each block that was written; nil: not needed
}

// Run carries out a job on a controller on which no engine is. It ends early, and without an error, when stop is closed: the result says
// what was measured until then. So it does beside an error, if there is one. tell hears of each stage when it
// begins, and of progress now and then.
func Run(stop <-chan struct{}, c *controller.Controller, j Job, tell func(Progress)) (_ *Result, err error) {
	ns, err := c.Namespace(j.NSID)
	if err != nil {
		return nil, err
	}
	if err := j.check(ns); err != nil {
		return nil, err
	}
	if ns.ReadOnly && j.writes() {
		return nil, fmt.Errorf("namespace %d is write protected", j.NSID)
	}
	place, err := j.Mode.Placement()
	if err != nil {
		return nil, err
	}
	if err := c.Place(place); err != nil {
		return nil, err
	}
	r := &run{j: j, c: c, ns: ns, shift: uint64(j.Block / ns.BlockSize), stop: stop}
	if r.kernel, err = openBlocks(c.Runtime(), j.Seed); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.kernel.close()) }()
	ec := j.Engine
	ec.Lanes, ec.Depth, ec.MaxTransfer, ec.Trace = j.Lanes, j.Queue, max(j.Block, 1<<20), j.Steps
	if r.e, err = engine.New(c, ec); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.e.Close()) }()
	if j.Block > r.e.MaxTransfer() {
		return nil, fmt.Errorf("a block of %s: a command carries %s at most", units.Bytes(j.Block), units.Bytes(r.e.MaxTransfer()))
	}
	r.j.Lanes, r.j.Depth = r.e.Lanes(), min(j.Depth, r.e.Depth())
	r.j.Queue, r.j.Batch = r.e.Depth()+1, min(r.j.Batch, r.j.Depth)
	return r.carryOut(tell)
}

// carryOut is steps 2 to 4.
func (r *run) carryOut(tell func(Progress)) (*Result, error) {
	if r.j.Verify && r.j.writes() {
		r.written = make([]atomic.Uint64, (r.j.units(r.ns)+63)/64)
	}
	crew, err := r.hire()
	defer func() {
		for _, w := range crew {
			w.close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if r.j.Prefill {
		r.phase(crew, Filling, r.j.units(r.ns), tell, (*worker).fill)
		if err := r.flush(); err != nil {
			return nil, err
		}
	}
	res := &Result{Job: r.j}
	for _, w := range crew {
		w.reset()
	}
	if r.ok() {
		before := r.e.Stats()
		res.Elapsed = r.phase(crew, Measuring, r.j.Count, tell, (*worker).measure)
		res.count(before, r.e.Stats())
	}
	for _, w := range crew {
		res.add(w)
	}
	res.Route, _ = r.e.Doorbells()
	if r.j.writes() && r.fatal == nil {
		began := time.Now()
		r.fatal = r.flush()
		res.Flush = time.Since(began)
	}
	if r.written != nil && r.ok() {
		r.phase(crew, Checking, r.j.units(r.ns), tell, (*worker).recheck)
	}
	res.Failed, res.FirstError = r.failed.Load(), r.firstErr
	res.Unwritten = r.wrong.unwritten.Load()
	res.Checked, res.Wrong, res.FirstWrong = r.wrong.checked.Load(), r.wrong.blocks.Load(), r.wrong.text()
	return res, r.fatal
}

// ok says whether the next part of the run is to begin.
func (r *run) ok() bool {
	select {
	case <-r.stop:
		return false
	default:
		return r.fatal == nil && r.failed.Load() < MaxErrors
	}
}

// tellEvery is how often Run tells of progress.
const tellEvery = 200 * time.Millisecond

// phase has all workers do one part of the run, and returns how long that took.
func (r *run) phase(crew []*worker, s Stage, total uint64, tell func(Progress), f func(*worker) error) time.Duration {
	r.ended.Store(false)
	r.next.Store(0)
	r.claimed.Store(0)
	r.done.Store(0)
	tell(Progress{Stage: s, Total: total})
	var wg sync.WaitGroup
	began := time.Now()
	for _, w := range crew {
		wg.Go(func() {
			if err := f(w); err != nil {
				r.mu.Lock()
				r.fatal = errors.Join(r.fatal, err)
				r.mu.Unlock()
				r.ended.Store(true)
			}
		})
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	var limit <-chan time.Time
	if s == Measuring && r.j.Time > 0 {
		limit = time.After(r.j.Time)
	}
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	stop := r.stop
	for {
		select {
		case <-over:
			return time.Since(began)
		case <-limit:
			r.ended.Store(true)
			limit = nil
		case <-stop:
			r.ended.Store(true)
			stop = nil
		case <-tick.C:
			p := Progress{s, r.done.Load(), total, r.done.Load()}
			if s == Checking {
				p.Done = min(r.next.Load(), total)
			}
			if s == Measuring && r.j.Time > 0 {
				p.Done, p.Total = uint64(min(time.Since(began), r.j.Time)), uint64(r.j.Time)
			}
			tell(p)
		}
	}
}

// flush makes what was written durable. One that the controller cannot carry out counts among the commands that failed.
func (r *run) flush() error {
	err := r.e.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: r.j.NSID}})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("flush: %w", err)
	if status := (*nvme.StatusError)(nil); errors.As(err, &status) {
		r.failedWith(err)
		return nil
	}
	return err
}

// hire makes the workers: as many for each lane as its depth has batches.
func (r *run) hire() (crew []*worker, err error) {
	for lane := range r.j.Lanes {
		for first := 0; first < r.j.Depth; first += r.j.Batch {
			w, err := newWorker(r, lane, len(crew), min(r.j.Batch, r.j.Depth-first))
			if err != nil {
				return crew, err
			}
			crew = append(crew, w)
		}
	}
	return crew, nil
}

var one = gpu.Dim3{X: 1, Y: 1, Z: 1}
