package gputest

import (
	"testing"

	"github.com/lanefs/lanefs/kernels"
	"github.com/stretchr/testify/require"
)

// flushes submits n commands and returns their entries as the controller fetched them.
func (r *rig) flushes(n int, timeout uint64) []sqe {
	r.t.Helper()
	for i := range n {
		r.submit(kernels.Work{Opcode: opFlush, Tag: uint16(i), Nsid: 1, Timeout: timeout})
	}
	r.run()
	entries := r.fetch()
	require.Len(r.t, entries, n)
	return entries
}

// A completion that names nothing in flight ends the queue pair: everything is answered, nothing is believed any more.
func testBadCompletion(t *testing.T, open opener) {
	for _, c := range []struct {
		name string
		bad  func(r *rig, entries []sqe) (cid, sqid uint16)
	}{
		{"CID beyond the queue", func(r *rig, _ []sqe) (uint16, uint16) { return uint16(r.cids), 1 }},
		{"highest CID", func(*rig, []sqe) (uint16, uint16) { return 0xffff, 1 }},
		{"free CID", func(r *rig, entries []sqe) (uint16, uint16) { return entries[2].cid + 1, 1 }},
		{"wrong SQID", func(_ *rig, entries []sqe) (uint16, uint16) { return entries[1].cid, 2 }},
		{"completed twice", func(_ *rig, entries []sqe) (uint16, uint16) { return entries[0].cid, 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newLane(t, open, ordinary)
			entries := r.flushes(3, 0)
			r.complete(entries[0].cid, 0, 0, 0)
			r.run()
			require.Len(t, r.take(), 1)

			cid, sqid := c.bad(r, entries)
			r.completeAs(sqid, cid, 0, 0, 0)
			r.complete(entries[1].cid, 0, 0, 0)
			r.submit(kernels.Work{Opcode: opFlush, Tag: 77})
			require.True(t, r.run())
			results := r.take()
			require.Len(t, results, 3, "two commands in flight and one work item")
			for _, res := range results {
				require.Equal(t, kernels.EngineBadCQE, res.Engine)
			}
			require.Equal(t, uint32(kernels.EngineBadCQE), r.status.Failed)
			require.Equal(t, uint32(cid)|uint32(sqid)<<16, r.status.BadCid)
			require.Equal(t, uint64(1), r.counters.Spurious)
			require.Empty(t, r.fetch(), "a failed lane posts nothing")

			r.submit(kernels.Work{Opcode: opFlush, Tag: 78})
			r.run()
			require.Equal(t, kernels.EngineBadCQE, r.take()[0].Engine)

			r.reset()
			require.Zero(t, r.status.Failed)
			require.Len(t, r.flushes(int(r.cids), 0), int(r.cids), "a rebuilt queue pair has all CIDs")
			require.Equal(t, uint64(1), r.counters.Spurious, "counters go on")
		})
	}
}

// A CID that is completed twice within one step is answered once, whether the team reaps both completions together or one after the other.
func testCompletedTwice(t *testing.T, open opener) {
	for _, good := range []int{1, 2, 5, 33} { // completions before the second of the first command
		r := newSilentLane(t, open, ordinary, silent)
		entries := r.flushes(40, 0)
		for _, e := range entries[:good] {
			r.complete(e.cid, 0, 0, 0)
		}
		r.complete(entries[0].cid, 0, 0, 0)
		r.complete(entries[good].cid, 0, 0, 0)
		require.True(t, r.run())
		results := r.take()
		require.Len(t, results, len(entries))
		for i, res := range results {
			require.Equal(t, uint16(i), res.Tag)
			if i < good {
				require.Equal(t, kernels.EngineOK, res.Engine, "%d of %d", i, good)
			} else {
				require.Equal(t, kernels.EngineBadCQE, res.Engine, "%d after %d", i, good)
			}
		}
		require.Equal(t, uint32(entries[0].cid)|1<<16, r.status.BadCid)
		require.Equal(t, uint64(1), r.counters.Spurious)
		require.Zero(t, r.status.InFlight)
	}
}

// A command that misses its deadline is answered; its CID is not used again, and its completion, should it come, is only
// counted.
func testTimeout(t *testing.T, open opener) {
	r := newLane(t, open, shape{sq: 8, cq: 8, ring: 16, cids: 3, stride: 64})
	r.submit(kernels.Work{Opcode: opFlush, Tag: 1, Timeout: 100})
	r.submit(kernels.Work{Opcode: opFlush, Tag: 2, Timeout: 1000})
	r.submit(kernels.Work{Opcode: opFlush, Tag: 3})
	r.run()
	start := r.now
	entries := r.fetch()
	r.now = start + 98
	require.False(t, r.run(), "one tick before the deadline")
	require.True(t, r.run())
	results := r.take()
	require.Len(t, results, 1)
	require.Equal(t, uint16(1), results[0].Tag)
	require.Equal(t, kernels.EngineTimeout, results[0].Engine)
	require.Equal(t, uint64(100), results[0].Latency)
	require.Equal(t, entries[0].cid, results[0].Cid)
	require.Equal(t, uint32(2), r.status.InFlight)
	require.Equal(t, uint32(1), r.status.DeadCids)

	r.submit(kernels.Work{Opcode: opFlush, Tag: 4})
	require.False(t, r.run(), "a dead CID is not free")
	r.complete(entries[0].cid, 0, 0, 0)
	require.True(t, r.run())
	require.Empty(t, r.take(), "a late completion answers nothing")
	require.Equal(t, uint64(1), r.counters.Late)
	require.Zero(t, r.counters.Spurious)
	require.Empty(t, r.fetch())

	r.complete(entries[2].cid, 0, 0, 0)
	r.run()
	require.Equal(t, uint16(3), r.take()[0].Tag)
	require.Len(t, r.fetch(), 1, "tag 4 takes the CID of tag 3")

	r.now = start + 2000
	r.run()
	require.Equal(t, uint16(2), r.take()[0].Tag)
	r.now += 1 << 60
	require.False(t, r.run(), "no timeout, no deadline")
	require.Equal(t, uint64(2), r.counters.Timeouts)

	r.reset()
	require.Equal(t, kernels.EngineQueueDead, r.take()[0].Engine, "tag 4 was in flight")
	r.flushes(3, 10)
	r.now += 10
	r.run()
	require.Len(t, r.take(), 3)
	require.Equal(t, uint32(kernels.EngineQueueDead), r.status.Failed, "no CID is left")
	r.submit(kernels.Work{Opcode: opFlush})
	r.run()
	require.Equal(t, kernels.EngineQueueDead, r.take()[0].Engine)

	r.reset()
	r.submit(kernels.Work{Opcode: opFlush, Timeout: ^uint64(0)})
	r.run()
	r.run()
	require.Equal(t, uint32(1), r.status.InFlight, "a timeout past the end of time is no deadline")
}

// CommandFail answers everything, at once and from then on.
func testFail(t *testing.T, open opener) {
	r := newLane(t, open, ordinary)
	entries := r.flushes(5, 0)
	r.complete(entries[0].cid, 0, 0, 0)
	r.submit(kernels.Work{Opcode: opFlush, Tag: 9})
	r.control.Command = kernels.CommandFail
	require.True(t, r.run())
	results := r.take()
	require.Len(t, results, 6)
	for _, res := range results {
		require.Equal(t, kernels.EngineQueueDead, res.Engine)
	}
	require.False(t, r.run())
	r.control.Command = kernels.CommandRun
	r.submit(kernels.Work{Opcode: opFlush})
	r.run()
	require.Equal(t, kernels.EngineQueueDead, r.take()[0].Engine, "until it is reset")
	r.reset()
	r.flushes(1, 0)
}

// lanefs_reset answers what was in flight and keeps what was not yet taken.
func testReset(t *testing.T, open opener) {
	r := newLane(t, open, shape{sq: 4, cq: 4, ring: 8, cids: 3, stride: 64})
	for i := range 5 {
		r.submit(kernels.Work{Opcode: opFlush, Tag: uint16(i)})
	}
	r.run()
	r.fetch()
	r.reset()
	results := r.take()
	require.Len(t, results, 3)
	for i, res := range results {
		require.Equal(t, uint16(i), res.Tag)
		require.Equal(t, kernels.EngineQueueDead, res.Engine)
	}
	for i := range r.cq {
		require.Zero(t, r.cq[i], "the completion queue is zeroed")
	}
	r.run()
	entries := r.fetch()
	require.Len(t, entries, 2)
	r.complete(entries[1].cid, 0, 0, 0)
	r.run()
	require.Equal(t, uint16(4), r.take()[0].Tag)
}

// Work that cannot be expressed is answered without being posted, and disturbs nothing.
func testBadWork(t *testing.T, open opener) {
	s := ordinary
	s.stride = 64
	r := newLane(t, open, s)
	bad := []kernels.Work{
		{Opcode: opRead, Iova: 2, Len: 512}, {Opcode: opRead, Iova: 4097, Len: 4096},
		{Opcode: opRead, Iova: 0x10000, Len: 10 * 4096}, {Opcode: opRead, Iova: 0x10ffc, Len: 8*4096 + 8},
		{Opcode: opRead, Iova: ^uint64(0) - 4095, Len: 8192}, {Opcode: opRead, Iova: 0, Len: 0xffffffff},
	}
	good := kernels.Work{Opcode: opRead, Iova: 0x10000, Len: 9 * 4096, Tag: 100}
	for i, w := range bad {
		w.Tag = uint16(i)
		r.submit(w)
	}
	r.submit(good)
	r.run()
	results := r.take()
	require.Len(t, results, len(bad))
	for i, res := range results {
		require.Equal(t, uint16(i), res.Tag)
		require.Equal(t, kernels.EngineBadWork, res.Engine)
	}
	require.Equal(t, uint64(len(bad)), r.counters.Rejected)
	require.Len(t, r.fetch(), 1)
	require.Equal(t, uint32(1), r.status.InFlight)
}

// The kernel refuses a lane that the CPU laid out otherwise, and touches nothing of one that is not a lane.
func testBadLane(t *testing.T, open opener) {
	for name, spoil := range map[string]func(l *kernels.Lane){
		"magic":              func(l *kernels.Lane) { l.Magic++ },
		"version":            func(l *kernels.Lane) { l.Version++ },
		"size":               func(l *kernels.Lane) { l.Size -= 64 },
		"ring size":          func(l *kernels.Lane) { l.RingSize = 100 },
		"no ring":            func(l *kernels.Lane) { l.RingSize = 0 },
		"no CIDs":            func(l *kernels.Lane) { l.CidCount = 0 },
		"CIDs fill the SQ":   func(l *kernels.Lane) { l.CidCount = l.SqSize },
		"CIDs fill the CQ":   func(l *kernels.Lane) { l.CqSize = l.CidCount },
		"SQ too large":       func(l *kernels.Lane) { l.SqSize = 65537 },
		"page size":          func(l *kernels.Lane) { l.PageSize = 5000 },
		"small page":         func(l *kernels.Lane) { l.PageSize = 2048 },
		"no PRP list":        func(l *kernels.Lane) { l.PrpStride = 0 },
		"odd PRP list":       func(l *kernels.Lane) { l.PrpStride = 24 },
		"crossing PRP list":  func(l *kernels.Lane) { l.PrpStride = 4096 + 64 },
		"unaligned PRP list": func(l *kernels.Lane) { l.Prp += 64 },
		"unaligned PRP IOVA": func(l *kernels.Lane) { l.PrpIova += 8 },
		"unaligned SQ":       func(l *kernels.Lane) { l.Sq += 16 },
		"unaligned doorbell": func(l *kernels.Lane) { l.SqDoorbell += 2 },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, open, ordinary)
			spoil(r.lane)
			r.reset()
			require.Equal(t, kernels.StateNew, r.status.State)
			r.submit(kernels.Work{Opcode: opFlush})
			require.False(t, r.run())
			require.Zero(t, *r.sqDB)
			require.Empty(t, r.take())
			require.Contains(t, []uint32{0, uint32(kernels.EngineBadLane)}, r.status.Failed)
		})
	}
	r := newRig(t, open, ordinary)
	require.False(t, r.run(), "a lane that was never reset does nothing")
}
