package engine

import (
	"math/bits"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/internal/align"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// geometry is the sizes in bytes of one lane's parts.
type geometry struct {
	page, sq, cq, prp, ranges int64
	own, head, cids           int64 // own: of all lanes, the word of the launches, the lane structs in a row, at head the CIDs
	shared, work, results     int64 // shared: control, status, counters, then work, then results, then traces
	traces, stamps            int64 // of a lane, in shared and in own; 0: it does not trace
	ring, count               int
	stride                    uint32
}

// firstLane is where the lane structs begin, after the word of the launches: a cache line.
const firstLane = 64

// sharedHead is the bytes before the work ring.
const sharedHead = kernels.ControlSize + kernels.StatusSize + kernels.CountersSize

// newGeometry computes them for so many lanes and host pages of page bytes.
func newGeometry(cfg Config, page int64, lanes int) geometry {
	g := geometry{page: page, count: cfg.Depth - 1, stride: kernels.PRPStride(cfg.MaxTransfer, page)}
	// Twice as many slots as commands in flight: the lane finds work waiting when completions free its CIDs.
	g.ring = 1 << bits.Len(uint(2*cfg.Depth-1))
	g.sq, g.cq = align.Up(int64(cfg.Depth)*nvme.SQESize, page), align.Up(int64(cfg.Depth)*nvme.CQESize, page)
	g.prp = align.Up(int64(g.count)*int64(g.stride), page)
	g.ranges = align.Up(rangePages*controller.PageSize, page)
	g.cids = align.Up(int64(g.count)*kernels.CIDSize, firstLane)
	g.head = firstLane + int64(lanes)*kernels.LaneSize
	if cfg.Trace {
		g.traces, g.stamps = int64(g.ring)*kernels.TraceSize, int64(g.count)*kernels.TraceSize
	}
	g.own = align.Up(g.head+int64(lanes)*(g.cids+g.stamps), controller.PageSize)
	g.work, g.results = int64(g.ring)*kernels.WorkSlotSize, int64(g.ring)*kernels.ResultSlotSize
	g.shared = align.Up(sharedHead+g.work+g.results+g.traces, controller.PageSize)
	return g
}

// noResult has a bit for each command whose completion says nothing in DW0 and DW1 (NVM §3.2; Base §7.1 for Flush).
const noResult = 1<<nvme.IOFlush | 1<<nvme.IOWrite | 1<<nvme.IORead | 1<<nvme.IOCompare | 1<<nvme.IOWriteZeroes | 1<<nvme.IODSM | 1<<nvme.IOVerify | 1<<nvme.IOWriteUncorr

// place gives the lane its part of the engine's memory, with empty rings, and makes the lane struct that the kernels read.
func (l *lane) place(w *resources, g geometry, qid uint16) {
	n := int64(l.index)
	h := w.shared.Host()[n*g.shared : (n+1)*g.shared]
	at := w.shared.Addr() + gpu.Addr(n*g.shared)
	l.qid, l.self = qid, w.own.Addr()+gpu.Addr(firstLane+n*kernels.LaneSize)
	l.sqIOVA, l.cqIOVA = w.sq.IOVA+nvme.IOVA(n*g.sq), w.cq.IOVA+nvme.IOVA(n*g.cq)
	l.rangeHost, l.rangeIOVA = w.ranges.Host[n*g.ranges:(n+1)*g.ranges], w.ranges.IOVA+nvme.IOVA(n*g.ranges)
	l.control = (*kernels.Control)(unsafe.Pointer(&h[0]))
	l.status = (*kernels.Status)(unsafe.Pointer(&h[kernels.ControlSize]))
	l.counters = (*kernels.Counters)(unsafe.Pointer(&h[kernels.ControlSize+kernels.StatusSize]))
	l.work = unsafe.Slice((*kernels.WorkSlot)(unsafe.Pointer(&h[sharedHead])), g.ring)
	l.results = unsafe.Slice((*kernels.ResultSlot)(unsafe.Pointer(&h[sharedHead+g.work])), g.ring)
	l.traces = nil
	var trace, stamps uint64
	if g.traces > 0 {
		off := sharedHead + g.work + g.results
		l.traces = unsafe.Slice((*kernels.Trace)(unsafe.Pointer(&h[off])), g.ring)
		trace, stamps = uint64(at)+uint64(off), uint64(w.own.Addr())+uint64(g.head+int64(len(w.lanes))*g.cids+n*g.stamps)
	}
	l.workPos, l.resultPos = 0, 0
	sqDoorbell, cqDoorbell := l.placeDoorbells(w)
	w.lanes[n] = kernels.Lane{Magic: kernels.Magic, Version: kernels.Version, Size: kernels.LaneSize, Sqid: qid,
		Sq: uint64(w.sq.Addr) + uint64(n*g.sq), Cq: uint64(w.cq.Addr) + uint64(n*g.cq),
		SqDoorbell: sqDoorbell, CqDoorbell: cqDoorbell,
		Work: uint64(at) + sharedHead, Results: uint64(at) + sharedHead + uint64(g.work),
		Cids: uint64(w.own.Addr()) + uint64(g.head+n*g.cids),
		Prp:  uint64(w.prp.Addr) + uint64(n*g.prp), PrpIova: uint64(w.prp.IOVA) + uint64(n*g.prp),
		Control: uint64(at), Status: uint64(at) + kernels.ControlSize, Counters: uint64(at) + kernels.ControlSize + kernels.StatusSize,
		SqSize: uint32(l.e.cfg.Depth), CqSize: uint32(l.e.cfg.Depth), RingSize: uint32(g.ring), CidCount: uint32(g.count),
		PrpStride: g.stride, PageSize: uint32(g.page), Silent: noResult, Trace: trace, Stamps: stamps,
	}
}

// describe copies the lane structs to the lanes' own memory, and zeroes the rest of that. The device itself writes to its memory, also
// where the CPU has a view of it: what the CPU stores there by a BAR may be on its way still when a kernel looks.
func (w *resources) describe(e *Engine) error {
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&w.lanes[0])), len(w.lanes)*kernels.LaneSize)
	if h := w.own.Host(); h != nil && w.own.Reach().Owner != gpu.OwnerDevice {
		clear(h)
		copy(h[firstLane:], raw)
		return nil
	}
	if err := fillAndWait(w.stream, w.own.Addr(), 0, w.own.Size()); err != nil {
		return err
	}
	stage, err := e.runtime().Alloc(gpu.HostMapped, int64(len(raw)))
	if err != nil {
		return err
	}
	defer stage.Close()
	copy(stage.Host(), raw)
	return copyAndWait(w.stream, w.own.Addr()+firstLane, stage.Addr(), int64(len(raw)))
}

// copyTimeout bounds the copies of single pages, to and from memory that the CPU cannot address.
const copyTimeout = 5 * time.Second

// copyAndWait has the device copy n bytes, and returns when it has.
func copyAndWait(s gpu.Stream, dst, src gpu.Addr, n int64) error {
	if err := s.Copy(dst, src, n); err != nil {
		return err
	}
	return s.Wait(copyTimeout)
}

// fillAndWait has the device fill n bytes with v, and returns when it has.
func fillAndWait(s gpu.Stream, addr gpu.Addr, v byte, n int64) error {
	if err := s.Fill(addr, v, n); err != nil {
		return err
	}
	return s.Wait(copyTimeout)
}
