package gputest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/kernels"
)

// pages submits n reads of a page each, the i-th of page i+1 with tag i, as change leaves it.
func (r *rig) pages(n int, change func(i int, w *kernels.Work)) {
	for i := range n {
		w := kernels.Work{Opcode: opRead, Tag: uint16(i), Nsid: 1, Iova: uint64(i+1) << 12, Len: 4096, Cdw10: uint32(i), Timeout: 1 << 40}
		change(i, &w)
		r.submit(w)
	}
}

// batch is more than any team that is one thread takes at a time.
const batch = 10

// Lanes handle batches of commands and completions that are all alike in a quicker way: one that is not alike is noticed wherever
// it is.
func testOddCompletion(t *testing.T, open opener) {
	r := newSilentLane(t, open, ordinary, silent)
	r.pages(batch, func(int, *kernels.Work) {}) // a first batch, so that the queues are not where they begin
	r.run()
	for _, e := range r.fetch() {
		r.complete(e.cid, 0, 0, 0)
	}
	r.run()
	require.Len(t, r.take(), batch)

	for _, c := range []struct {
		name      string
		cid, sqid func(entries []sqe, at int) uint16
		bad       bool
	}{
		{"alike", nil, nil, false},
		{"error", nil, nil, false},
		{"talks", nil, nil, false},
		{"late", nil, nil, false},
		{"CID beyond the queue", func([]sqe, int) uint16 { return uint16(r.cids) }, nil, true},
		{"highest CID", func([]sqe, int) uint16 { return 0xffff }, nil, true},
		{"free CID", func(entries []sqe, _ int) uint16 { return entries[batch-1].cid + 1 }, nil, true},
		{"the one before again", func(entries []sqe, at int) uint16 { return entries[at-1].cid }, nil, true},
		{"the first again", func(entries []sqe, at int) uint16 { return entries[0].cid }, nil, true},
		{"wrong SQID", nil, func([]sqe, int) uint16 { return 2 }, true},
	} {
		for at := 1; at < batch; at++ {
			r.reset()
			before := *r.counters
			r.pages(batch, func(i int, w *kernels.Work) {
				if i == at && c.name == "talks" {
					w.Opcode = 0x42
				}
				if i == at && c.name == "late" {
					w.Timeout = 5
				}
			})
			r.run()
			entries := r.fetch()
			require.Len(t, entries, batch)
			if r.now += 10; c.name == "late" {
				require.True(t, r.run())
				require.Equal(t, kernels.EngineTimeout, r.take()[0].Engine)
			}
			for i, e := range entries {
				cid, sqid, status, dw0 := e.cid, uint16(1), uint16(0), uint32(0)
				if i == at {
					if c.cid != nil {
						cid = c.cid(entries, at)
					}
					if c.sqid != nil {
						sqid = c.sqid(entries, at)
					}
					switch c.name {
					case "error":
						status = 0x281
					case "talks":
						dw0 = 0xfeed
					}
				}
				r.completeAs(sqid, cid, status, dw0, 0)
			}
			require.True(t, r.run())
			results := r.take()
			moved := uint64(batch)
			switch {
			case c.bad:
				moved = uint64(at)
				require.Len(t, results, batch)
				for i, res := range results {
					if i < at {
						require.Equal(t, kernels.EngineOK, res.Engine, "%s at %d: completion %d", c.name, at, i)
						require.Equal(t, uint16(i), res.Tag)
					} else {
						require.Equal(t, kernels.EngineBadCQE, res.Engine, "%s at %d: completion %d", c.name, at, i)
					}
				}
				require.Equal(t, before.Spurious+1, r.counters.Spurious)
			case c.name == "late":
				moved--
				require.Equal(t, before.Late+1, r.counters.Late)
				require.Equal(t, uint32(1), r.status.DeadCids)
				require.Len(t, results, batch-1)
			default:
				require.Len(t, results, batch)
				for i, res := range results {
					want := kernels.Result{Seq: res.Seq, Tag: uint16(i), Latency: 11, Cid: entries[i].cid, Sqhd: uint16(r.sqHead)}
					if i == at && c.name == "error" {
						want.Status, moved = 0x281, batch-1
					}
					if i == at && c.name == "talks" {
						want.Dw0 = 0xfeed
					}
					require.Equal(t, want, res, "%s at %d: completion %d", c.name, at, i)
				}
			}
			require.Equal(t, before.BytesRead+moved*4096, r.counters.BytesRead, "%s at %d", c.name, at)
			if !c.bad {
				require.Zero(t, r.status.Failed, "%s at %d", c.name, at)
				require.Zero(t, r.status.InFlight)
			}
		}
	}
}

func testOddItem(t *testing.T, open opener) {
	r := newSilentLane(t, open, ordinary, silent)
	const end = uint64(1<<64 - 4096)
	for _, c := range []struct {
		name   string
		change func(*kernels.Work)
		bad    bool
		want   func(e *sqe)
	}{
		{"alike", func(*kernels.Work) {}, false, func(*sqe) {}},
		{"not aligned", func(w *kernels.Work) { w.Iova += 2 }, true, nil},
		{"past the end of all addresses", func(w *kernels.Work) { w.Iova = end + 4 }, true, nil},
		{"the last page", func(w *kernels.Work) { w.Iova = end }, false, func(e *sqe) { e.prp1 = end }},
		{"no data", func(w *kernels.Work) { w.Len = 0 }, false, func(e *sqe) { e.prp1 = 0 }},
		{"two pages, one page's length", func(w *kernels.Work) { w.Iova += 4 }, false, func(e *sqe) { e.prp1, e.prp2 = e.prp1+4, e.prp1+4096 }},
		{"two pages", func(w *kernels.Work) { w.Len = 8192 }, false, func(e *sqe) { e.prp2 = e.prp1 + 4096 }},
		{"three pages", func(w *kernels.Work) { w.Len = 3 * 4096 }, false, func(e *sqe) { e.prp2 = prpIOVA + uint64(e.cid)*4096 }},
		{"another timeout", func(w *kernels.Work) { w.Timeout = 7 }, false, func(*sqe) {}},
		{"no timeout", func(w *kernels.Work) { w.Timeout = 0 }, false, func(*sqe) {}},
	} {
		for at := range batch {
			r.reset()
			before := *r.counters
			r.pages(batch, func(i int, w *kernels.Work) {
				if i == at {
					c.change(w)
				}
			})
			require.True(t, r.run())
			entries := r.fetch()
			bad := 0
			for i := range batch {
				if i == at && c.bad {
					bad = 1
					continue
				}
				e := entries[i-bad]
				want := sqe{opcode: opRead, cid: uint16(i - bad), nsid: 1, prp1: uint64(i+1) << 12, cdw: [6]uint32{uint32(i)}}
				if i == at {
					c.want(&want)
				}
				require.Equal(t, want, e, "%s at %d: item %d", c.name, at, i)
			}
			require.Len(t, entries, batch-bad)
			require.Equal(t, before.Rejected+uint64(bad), r.counters.Rejected)
			if c.bad {
				results := r.take()
				require.Len(t, results, 1)
				require.Equal(t, kernels.EngineBadWork, results[0].Engine)
				require.Equal(t, uint16(at), results[0].Tag)
			}
			// Only one that asked for it is late, and it is so at its time.
			r.now += 5
			require.False(t, r.run(), "%s at %d", c.name, at)
			require.Equal(t, c.name == "another timeout", r.run(), "%s at %d", c.name, at)
			if c.name == "another timeout" {
				results := r.take()
				require.Len(t, results, 1)
				require.Equal(t, uint16(at), results[0].Tag)
				require.Equal(t, kernels.EngineTimeout, results[0].Engine)
			}
			r.now += 1 << 40
			late := batch - bad
			if c.name == "no timeout" || c.name == "another timeout" {
				late--
			}
			r.run()
			require.Len(t, r.take(), late, "%s at %d", c.name, at)
			r.reset()
			left := 0
			if c.name == "no timeout" {
				left = 1
			}
			require.Len(t, r.take(), left, "%s at %d: still in flight", c.name, at)
		}
	}
}
