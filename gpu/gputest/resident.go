package gputest

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// Ticks of the device's clock: at most a few nanoseconds each, so these are a fraction of a second and an eternity.
const (
	soon  = 1 << 22
	never = 1 << 62
)

// background launches a kernel that runs the lane, on a stream of its own; on a caller-driven runtime it runs in a
// goroutine. The returned function waits until it has ended. If the test fails before, the lane is told to park, so that
// no kernel runs on memory that is no more.
func (r *rig) background(name string, args ...uint64) (wait func()) {
	r.t.Helper()
	return r.backgroundOf(1, name, args...)
}

// backgroundOf is background for so many lanes.
func (r *rig) backgroundOf(lanes int, name string, args ...uint64) (wait func()) {
	r.t.Helper()
	f, err := r.module.Function(name)
	require.NoError(r.t, err)
	s, err := r.NewStream()
	require.NoError(r.t, err)
	var failure error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if failure = s.Launch(f, gpu.Dim3{X: uint32(lanes), Y: 1, Z: 1}, r.block, args...); failure == nil {
			failure = s.Wait(patience)
		}
	}()
	var closed sync.Once
	stop := func() {
		r.t.Helper()
		select {
		case <-ended:
			closed.Do(func() { require.NoError(r.t, s.Close()) })
		case <-time.After(patience):
			r.t.Fatalf("%s has not ended after %v", name, patience)
		}
	}
	r.t.Cleanup(func() {
		if r.t.Failed() {
			atomic.StoreUint32(&r.control.Command, kernels.CommandPark)
		}
		stop()
	})
	return func() {
		r.t.Helper()
		stop()
		require.NoError(r.t, failure)
	}
}

// until spins, leaving the processor to others, until what says so; it fails after a while.
func (d *device) until(what string, is func() bool) {
	d.t.Helper()
	for end := time.Now().Add(patience); !is(); runtime.Gosched() {
		if time.Now().After(end) {
			d.t.Fatalf("%s has not happened after %v", what, patience)
		}
	}
}

// serve plays the controller for what has been posted, and returns the results that are there.
func (r *rig) serve() []kernels.Result {
	for _, e := range r.fetch() {
		r.complete(e.cid, 0, e.cdw[0], 0)
	}
	return r.take()
}

func (r *rig) state() kernels.State { return atomic.LoadUint32(&r.status.State) }

// The batch kernel posts all there is, waits for it, and ends.
func testBatchKernel(t *testing.T, open opener) {
	r := newLane(t, open, shape{sq: 8, cq: 8, ring: 64, cids: 7, stride: 64})
	for i := range 50 {
		r.submit(kernels.Work{Opcode: opRead, Tag: uint16(i), Nsid: 1, Cdw10: uint32(i)})
	}
	wait := r.background(r.batch, r.args[0], 1, never)
	got := 0
	r.until("the batch", func() bool {
		for _, res := range r.serve() {
			require.Equal(t, uint32(res.Tag), res.Dw0)
			got++
		}
		return got == 50
	})
	wait()
	require.Equal(t, uint64(50), r.counters.Commands)
	require.Zero(t, r.status.InFlight)

	r.submit(kernels.Work{Opcode: opRead})
	r.background(r.batch, r.args[0], 1, soon)() // the controller does not answer: it ends all the same
	require.Equal(t, uint32(1), r.status.InFlight)
}

// A resident lane serves work while it runs, ends when idle, and is launched again, and no command is lost or repeated.
func testResident(t *testing.T, open opener) {
	r := newLane(t, open, shape{sq: 16, cq: 16, ring: 32, cids: 15, stride: 64})
	const total = 5000
	wait := r.stay(soon, never)
	submitted, answered, launches := 0, 0, 1
	seen := make([]bool, total)
	r.until("the work", func() bool {
		for submitted < total && submitted-answered < 32 {
			r.submit(kernels.Work{Opcode: opWrite, Tag: uint16(submitted), Nsid: 1, Cdw10: uint32(submitted), Len: 512, Iova: 4096})
			submitted++
		}
		for _, res := range r.serve() {
			require.False(t, seen[res.Tag])
			require.Equal(t, uint32(res.Tag), res.Dw0)
			seen[res.Tag] = true
			answered++
		}
		if answered == total/2 && submitted-answered < 32 && launches == 1 {
			// Say nothing until it parks, then wake it.
			r.until("all answered", func() bool {
				for _, res := range r.serve() {
					seen[res.Tag] = true
					answered++
				}
				return answered == submitted
			})
			r.until("parking", func() bool { return r.state() == kernels.StateParked })
			wait()
		}
		if r.state() == kernels.StateParked {
			launches++
			// As the engine does: on a busy machine the kernel may run and park again before the state is read.
			atomic.StoreUint32(&r.status.State, kernels.StateRunning)
			wait = r.stay(soon, never)
		}
		return answered == total
	})
	wait() // it parks by itself
	require.Equal(t, kernels.StateParked, r.state())
	require.Equal(t, uint64(total), r.counters.Commands)
	require.Equal(t, uint64(total*512), r.counters.BytesWritten)
	require.Equal(t, r.lane.Totals, *r.counters)
}

// A resident lane leaves when told to and at its limit, with commands in flight, which the next one completes.
func testPark(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	wait := r.stay(never, never)
	r.until("running", func() bool { return r.state() >= kernels.StateRunning })
	r.submit(kernels.Work{Opcode: opFlush, Tag: 5})
	var entries []sqe
	r.until("the post", func() bool { entries = r.fetch(); return len(entries) > 0 })
	atomic.StoreUint32(&r.control.Command, kernels.CommandPark)
	wait()
	require.Equal(t, kernels.StateParked, r.state())
	require.Equal(t, uint32(1), r.lane.InFlight)
	require.Empty(t, r.take())

	atomic.StoreUint32(&r.control.Command, kernels.CommandRun)
	r.complete(entries[0].cid, 0, 0, 0)
	r.stay(never, soon)() // to its limit
	results := r.take()
	require.Len(t, results, 1)
	require.Equal(t, uint16(5), results[0].Tag)
	require.Equal(t, kernels.StateParked, r.state())

	// A failed controller: the loop answers and goes on until told to park.
	wait = r.stay(never, never)
	atomic.StoreUint32(&r.control.Command, kernels.CommandFail)
	r.submit(kernels.Work{Opcode: opFlush, Tag: 6})
	r.until("the answer", func() bool { results = r.take(); return len(results) > 0 })
	require.Equal(t, kernels.EngineQueueDead, results[0].Engine)
	atomic.StoreUint32(&r.control.Command, kernels.CommandPark)
	wait()
}

// Work submitted while the lane decides to park is not left behind (kernels/lifecycle.h). The CPU looks at the state once
// after submitting, as the protocol says, and launches again only if it saw PARKED then.
func testParkRace(t *testing.T, open opener) {
	const idle = 30000
	random := rand.New(rand.NewPCG(1, 2))
	r := newLane(t, open, ordinary)
	wait := func() {}
	launch := func() {
		wait()
		atomic.StoreUint32(&r.status.State, kernels.StateReady)
		wait = r.stay(idle, never)
	}
	launch()
	for round := range 500 {
		for range random.IntN(2 * idle / 100) { // arrive about when it parks
			if r.state() == kernels.StateParked {
				break
			}
		}
		r.submit(kernels.Work{Opcode: opFlush, Tag: uint16(round), Cdw10: uint32(round)})
		state := r.state()
		if state == kernels.StateParking {
			r.until("deciding", func() bool { state = r.state(); return state != kernels.StateParking })
		}
		if state == kernels.StateParked {
			launch()
		}
		r.until("the answer", func() bool {
			results := r.serve()
			if len(results) == 0 {
				return false
			}
			require.Len(t, results, 1)
			require.Equal(t, uint32(round), results[0].Dw0)
			return true
		})
	}
	wait()
	require.Equal(t, uint64(500), r.counters.Commands)
}

// The same at the exact moment: the lane's status lies over the work slot that comes next, so that storing PARKING (3) is
// what makes the item at position 2 appear. A lane that looks again after that store goes on; one that does not leaves.
func testParkRecheck(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	require.Equal(t, kernels.State(3), kernels.StateParking)
	r.lane.WorkNext = 2
	r.lane.Status = r.lane.Work + 2*kernels.WorkSlotSize
	state := r.work[2].Seq()
	wait := r.stay(1000, never)
	r.until("parking", func() bool { return atomic.LoadUint32(state) >= kernels.StateParking })
	r.until("running again", func() bool {
		require.NotEqual(t, kernels.StateParked, atomic.LoadUint32(state), "the lane left with work in its ring")
		return atomic.LoadUint32(state) == kernels.StateRunning
	})
	atomic.StoreUint32(&r.control.Command, kernels.CommandPark)
	wait()
	require.Equal(t, kernels.StateParked, atomic.LoadUint32(state))
}

// hold takes the lane out of the launch that runs it, giveBack puts it back.
func (r *rig) hold() {
	r.t.Helper()
	number := atomic.AddUint32(&r.control.Command, kernels.HoldBit) >> kernels.HoldShift
	r.until("the hold", func() bool { return atomic.LoadUint32(&r.status.Held) == number })
}

func (r *rig) giveBack() { atomic.AddUint32(&r.control.Command, kernels.HoldBit) }

// answer submits a command, and plays the controller until it is answered.
func (r *rig) answer(tag uint16) {
	r.t.Helper()
	r.submit(kernels.Work{Opcode: opFlush, Tag: tag, Cdw10: uint32(tag)})
	r.until("the answer", func() bool {
		results := r.serve()
		if len(results) == 0 {
			return false
		}
		require.Len(r.t, results, 1)
		require.Equal(r.t, uint32(tag), results[0].Dw0)
		return true
	})
}

// Lanes of one launch come and go: one dozes, is woken, is held and made new while the others run on, and all leave together. The first has a
// command in flight that the controller leaves unanswered: so the launch stays, however long the test stands still.
func testTogether(t *testing.T, open opener) {
	d := start(t, open.Open)
	lanes := make([]*rig, 6)
	array := d.alloc(gpu.HostCoherent, int64(len(lanes)*kernels.LaneSize))
	const unready = 4
	for i := range lanes {
		r := d.rig(open.team, shape{sq: 8, cq: 8, ring: 8, cids: 7, stride: 64})
		at := int64(i * kernels.LaneSize)
		lane := (*kernels.Lane)(unsafe.Pointer(&array.Host()[at]))
		*lane, r.lane, r.args[0] = *r.lane, lane, uint64(array.Addr())+uint64(at)
		lanes[i] = r
		if i != unready { // a lane that was never made ready disturbs nobody
			r.reset()
			require.Equal(t, kernels.StateReady, r.state())
		}
	}
	busy, first, held := lanes[0], lanes[1], lanes[2]
	var unanswered []sqe
	launch := func() func() {
		t.Helper()
		busy.submit(kernels.Work{Opcode: opFlush, Tag: 1})
		busy.launches++
		wait := busy.backgroundOf(len(lanes), busy.resident, busy.args[0], uint64(len(lanes)), soon, never, uint64(busy.word.Addr()), busy.launches)
		busy.until("the post", func() bool { unanswered = busy.fetch(); return len(unanswered) > 0 })
		return wait
	}
	wait := launch()
	for round := range uint16(3) {
		for _, r := range []*rig{lanes[5], lanes[1], lanes[3], lanes[2]} {
			r.answer(round)
		}
	}
	tag := uint16(100)
	dozing := func(r *rig) bool {
		first.answer(tag)
		tag++
		return r.state() == kernels.StateDozing
	}
	for _, r := range []*rig{lanes[3], lanes[5]} {
		r.until("dozing", func() bool { return dozing(r) })
		r.answer(7)
	}
	for round := range 2 { // awake, then asleep
		if round == 1 {
			held.until("dozing", func() bool { return dozing(held) })
		} else {
			held.answer(8)
		}
		held.submit(kernels.Work{Opcode: opFlush, Tag: 9})
		held.until("the post", func() bool { return len(held.fetch()) > 0 })
		held.hold()
		require.Equal(t, kernels.StateParked, held.state())
		require.Equal(t, uint32(1), held.lane.InFlight, "its state is in memory")
		held.submit(kernels.Work{Opcode: opFlush, Tag: 10, Cdw10: 10})
		for range 100 {
			dozing(first)
		}
		require.Empty(t, held.fetch(), "a lane that is held does nothing")
		held.reset()
		require.Equal(t, kernels.StateReady, held.state())
		require.Equal(t, kernels.EngineQueueDead, held.take()[0].Engine, "what was in flight")
		for range 100 {
			dozing(first)
		}
		require.Equal(t, kernels.StateReady, held.state(), "also after lanefs_reset")
		held.giveBack()
		held.until("the answer", func() bool { return len(held.serve()) == 1 })
	}
	require.Equal(t, kernels.StateNew, lanes[unready].state())
	all := func(state kernels.State) {
		t.Helper()
		for i, r := range lanes {
			if i != unready {
				require.Equal(t, state, r.state(), "lane %d", i)
			}
		}
	}
	busy.complete(unanswered[0].cid, 0, 0, 0)
	wait() // nobody has anything to do
	all(kernels.StateParked)
	require.Len(t, busy.take(), 1)

	wait = launch()
	for i, r := range lanes {
		if r != busy && i != unready {
			r.answer(1)
		}
	}
	held.hold()
	atomic.StoreUint32(&lanes[5].control.Command, kernels.CommandPark)
	wait() // one that is told to takes the others along
	all(kernels.StateParked)
	require.Equal(t, uint64(tag-100)+4, first.lane.Totals.Commands)
}
