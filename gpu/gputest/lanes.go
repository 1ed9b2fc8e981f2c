package gputest

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// Opcodes of the NVM command set; lanes look at the direction bits only.
const (
	opFlush = 0x00
	opWrite = 0x01
	opRead  = 0x02
)

// team is the threads that work on a lane, one or a wave, and the kernels that they run.
type team struct {
	step, batch, resident string
	threads               func(gpu.Facts) int
}

var (
	thread = team{kernels.StepKernel, kernels.BatchKernel, kernels.ResidentKernel, func(gpu.Facts) int { return 1 }}
	wave   = team{kernels.WaveStepKernel, kernels.WaveBatchKernel, kernels.WaveResidentKernel, func(f gpu.Facts) int { return f.WaveSize }}
)

// Lanes runs the suite of the lanes' kernels, for lanes that are a thread and lanes that are a wave.
func Lanes(t *testing.T, open Open) {
	t.Run("Thread", func(t *testing.T) { lanes(t, opener{open, thread}) })
	t.Run("Wave", func(t *testing.T) { lanes(t, opener{open, wave}) })
	t.Run("PRP", func(t *testing.T) { testPRP(t, open) })
}

// opener is how a test of a lane gets one.
type opener struct {
	Open
	team
}

func lanes(t *testing.T, open opener) {
	t.Run("Batch", func(t *testing.T) { testBatch(t, open) })
	t.Run("Fields", func(t *testing.T) { testFields(t, open) })
	t.Run("Wrap", func(t *testing.T) { testWrap(t, open) })
	t.Run("Status", func(t *testing.T) { testStatus(t, open) })
	t.Run("Full", func(t *testing.T) { testFull(t, open) })
	t.Run("Counters", func(t *testing.T) { testCounters(t, open) })
	t.Run("BadCompletion", func(t *testing.T) { testBadCompletion(t, open) })
	t.Run("CompletedTwice", func(t *testing.T) { testCompletedTwice(t, open) })
	t.Run("OddCompletion", func(t *testing.T) { testOddCompletion(t, open) })
	t.Run("OddItem", func(t *testing.T) { testOddItem(t, open) })
	t.Run("Timeout", func(t *testing.T) { testTimeout(t, open) })
	t.Run("Fail", func(t *testing.T) { testFail(t, open) })
	t.Run("Reset", func(t *testing.T) { testReset(t, open) })
	t.Run("BadWork", func(t *testing.T) { testBadWork(t, open) })
	t.Run("BadLane", func(t *testing.T) { testBadLane(t, open) })
	t.Run("BatchKernel", func(t *testing.T) { testBatchKernel(t, open) })
	t.Run("Resident", func(t *testing.T) { testResident(t, open) })
	t.Run("Park", func(t *testing.T) { testPark(t, open) })
	t.Run("ParkRecheck", func(t *testing.T) { testParkRecheck(t, open) })
	t.Run("Together", func(t *testing.T) { testTogether(t, open) })
	t.Run("ParkRace", func(t *testing.T) { testParkRace(t, open) })
}

// However many work items there are, the SQ doorbell is rung once for them, and the CQ doorbell once for what came back.
func testBatch(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	require.False(t, r.run(), "an idle step does nothing")
	require.Zero(t, r.counters.SqDoorbells)
	for _, n := range []int{1, 2, 10, 63} {
		before := *r.counters
		for i := range n {
			r.submit(kernels.Work{Opcode: opRead, Tag: uint16(i), Nsid: 1})
		}
		require.True(t, r.run())
		entries := r.fetch()
		require.Len(t, entries, n)
		require.Equal(t, uint32(n), r.status.InFlight)
		require.False(t, r.run(), "nothing to do while the controller works")
		require.Empty(t, r.take())

		for _, e := range entries {
			r.complete(e.cid, 0, 0, 0)
		}
		require.True(t, r.run())
		results := r.take()
		require.Len(t, results, n)
		for i, res := range results {
			require.Equal(t, uint16(i), res.Tag, "results come in order of completion")
			require.Equal(t, kernels.EngineOK, res.Engine)
		}
		require.Equal(t, r.cqTail, *r.cqDB, "the CQ doorbell gives back what was reaped")
		require.Equal(t, before.SqDoorbells+1, r.counters.SqDoorbells)
		require.Equal(t, before.CqDoorbells+1, r.counters.CqDoorbells)
		require.Equal(t, before.Commands+uint64(n), r.counters.Commands)
		require.Equal(t, before.Completions+uint64(n), r.counters.Completions)
		require.Zero(t, r.status.InFlight)
	}
}

// Every field of a work item is where the specification puts it, and every field of a completion comes back.
func testFields(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	r.submit(kernels.Work{Opcode: 0x85, Flags: 0x03, Tag: 0xabcd, Nsid: 0x12345678, Iova: 0x1122334455667788, Len: 512,
		Mptr: 0x99aabbccddeeff00, Cdw10: 10, Cdw11: 11, Cdw12: 12 | 1<<30, Cdw13: 13, Cdw14: 14, Cdw15: 15})
	r.run()
	posted := r.now
	entries := r.fetch()
	require.Equal(t, []sqe{{opcode: 0x85, flags: 0x03, cid: entries[0].cid, nsid: 0x12345678, mptr: 0x99aabbccddeeff00,
		prp1: 0x1122334455667788, cdw: [6]uint32{10, 11, 12 | 1<<30, 13, 14, 15}}}, entries)

	r.now += 41
	r.complete(entries[0].cid, 0, 0xdeadbeef, 0xfeedface)
	r.run()
	results := r.take()
	require.Len(t, results, 1)
	require.Equal(t, kernels.Result{Seq: 1, Tag: 0xabcd, Dw0: 0xdeadbeef, Dw1: 0xfeedface, Latency: r.now - posted,
		Cid: entries[0].cid, Sqhd: 1}, results[0])
	require.Equal(t, uint64(42), results[0].Latency)
}

// Queues and rings of odd sizes wrap many times, with completions in random order, across the wrap of positions.
func testWrap(t *testing.T, open opener) {
	for _, s := range []shape{
		{sq: 2, cq: 2, ring: 1, cids: 1, stride: 64}, {sq: 5, cq: 4, ring: 8, cids: 3, stride: 64},
		{sq: 4, cq: 7, ring: 2, cids: 3, stride: 64}, {sq: 33, cq: 64, ring: 16, cids: 32, stride: 64},
		{sq: 20, cq: 23, ring: 32, cids: 19, stride: 64},
	} {
		testWraps(t, open, s, 0)
		testWraps(t, open, s, 1<<opWrite)
	}
}

// testWraps has completions say something in DW0 unless they are silent.
func testWraps(t *testing.T, open opener, s shape, silent uint64) {
	r := newSilentLane(t, open, s, silent)
	// Positions wrap after 2^32 items: begin shortly before.
	const start = 1<<32 - 100
	r.lane.WorkNext, r.lane.ResultNext = start, start
	r.workNext, r.resultNext = start, start
	random := rand.New(rand.NewPCG(1, uint64(s.sq)))

	outstanding := map[uint16]bool{} // tags
	var pending []sqe                // at the controller
	owner := map[uint16]uint16{}     // CID: tag
	var completed []uint16           // tags
	submitted, answered := 0, 0
	for rounds := 0; answered < 1000; rounds++ {
		require.Less(t, rounds, 100000, "the lane has stopped: %d of %d answered", answered, submitted)
		for submitted < 1000 && len(outstanding) < int(s.ring) && random.IntN(3) > 0 {
			tag := uint16(submitted)
			outstanding[tag] = true
			r.submit(kernels.Work{Opcode: opWrite, Tag: tag, Nsid: 1, Cdw10: uint32(tag)})
			submitted++
		}
		r.run()
		for _, e := range r.fetch() {
			_, used := owner[e.cid]
			require.False(t, used, "CID %d is in flight twice", e.cid)
			require.Less(t, uint32(e.cid), s.cids)
			owner[e.cid] = uint16(e.cdw[0])
			pending = append(pending, e)
		}
		require.LessOrEqual(t, len(pending), int(s.cids))
		random.Shuffle(len(pending), func(i, j int) { pending[i], pending[j] = pending[j], pending[i] })
		for len(pending) > 0 && random.IntN(3) > 0 {
			e := pending[len(pending)-1]
			pending = pending[:len(pending)-1]
			r.complete(e.cid, 0, uint32(owner[e.cid])^0xffff, 0)
			completed = append(completed, owner[e.cid])
			delete(owner, e.cid)
		}
		for _, res := range r.take() {
			require.Equal(t, completed[0], res.Tag, "results come in order of completion")
			completed = completed[1:]
			require.True(t, outstanding[res.Tag], "tag %d answered twice or never asked", res.Tag)
			if silent == 0 {
				require.Equal(t, uint32(res.Tag)^0xffff, res.Dw0, "the completion of another command")
			}
			delete(outstanding, res.Tag)
			answered++
		}
	}
	require.Empty(t, outstanding)
	require.Equal(t, uint64(1000), r.counters.Commands)
	require.Equal(t, uint64(1000), r.counters.Completions)
	require.Zero(t, r.counters.Spurious+r.counters.Late+r.counters.Timeouts+r.counters.Rejected)
	first := uint32(start)
	require.Equal(t, first+1000, r.status.WorkNext)
}

// The status field comes back whole: SC alone would make some errors look like others, or like success.
func testStatus(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	errors := uint64(0)
	for _, status := range []uint16{0x0000, 0x0001, 0x4002, 0x0281, 0x0100, 0x0700, 0x4780, 0x3000, 0x7fff} {
		r.submit(kernels.Work{Opcode: opRead, Nsid: 1, Iova: 4096, Len: 4096})
		r.run()
		read := r.counters.BytesRead
		r.complete(r.fetch()[0].cid, status, 0, 0)
		r.run()
		results := r.take()
		require.Len(t, results, 1)
		require.Equal(t, status, results[0].Status)
		require.Equal(t, kernels.EngineOK, results[0].Engine)
		if status&0x7ff != 0 {
			errors++
			require.Equal(t, read, r.counters.BytesRead, "a failed command moved nothing")
		} else {
			require.Equal(t, read+4096, r.counters.BytesRead)
		}
		require.Equal(t, errors, r.counters.Errors)
	}
}

// With all CIDs in flight, work waits; each completion makes room for one.
func testFull(t *testing.T, open opener) {
	r := newLane(t, open, shape{sq: 9, cq: 5, ring: 16, cids: 4, stride: 64})
	for i := range 10 {
		r.submit(kernels.Work{Opcode: opFlush, Tag: uint16(i), Nsid: 1})
	}
	r.run()
	entries := r.fetch()
	require.Len(t, entries, 4)
	require.False(t, r.run())
	r.complete(entries[2].cid, 0, 0, 0)
	r.run()
	next := r.fetch()
	require.Len(t, next, 1, "the step that reaps also posts")
	require.Equal(t, entries[2].cid, next[0].cid)
	require.Equal(t, uint16(2), r.take()[0].Tag)
	require.Equal(t, uint32(4), r.status.InFlight)
}

func testCounters(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	for _, w := range []kernels.Work{{Opcode: opRead, Len: 8192}, {Opcode: opWrite, Len: 512}, {Opcode: opFlush}, {Opcode: 0x09, Len: 16}} {
		r.submit(w)
	}
	r.run()
	for _, e := range r.fetch() {
		r.complete(e.cid, 0, 0, 0)
	}
	r.run()
	require.Equal(t, uint64(8192), r.counters.BytesRead)
	require.Equal(t, uint64(512+16), r.counters.BytesWritten)
	require.Equal(t, r.lane.Totals, *r.counters)
}
