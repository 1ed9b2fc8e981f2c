package gputest

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/stretchr/testify/require"
)

// shape is what can be chosen of a lane.
type shape struct{ sq, cq, ring, cids, stride uint32 }

var ordinary = shape{sq: 64, cq: 64, ring: 128, cids: 63, stride: 4096}

// places are the offsets of a lane's parts in a block of memory of some size, each part on pages of its own.
type places struct {
	lane, control, status, counters, work, results, cids, prp, sq, cq, doorbells int64
	size                                                                         int64
}

func (s shape) places() (p places) {
	for _, part := range []struct {
		at   *int64
		size int64
	}{{&p.lane, kernels.LaneSize}, {&p.control, 64}, {&p.status, 64}, {&p.counters, 128},
		{&p.work, int64(s.ring) * kernels.WorkSlotSize}, {&p.results, int64(s.ring) * kernels.ResultSlotSize},
		{&p.cids, int64(s.cids) * kernels.CIDSize}, {&p.prp, int64(s.cids) * int64(s.stride)},
		{&p.sq, int64(s.sq) * 64}, {&p.cq, int64(s.cq) * 16}, {&p.doorbells, 64}} {
		*part.at = p.size
		p.size += (part.size + 4095) / 4096 * 4096
	}
	return p
}

// describe is a lane in a block at base, with what the controller reaches in a block at queues, which may be the same.
func (s shape) describe(base, queues uint64) kernels.Lane {
	p := s.places()
	own, shared := func(off int64) uint64 { return base + uint64(off) }, func(off int64) uint64 { return queues + uint64(off) }
	return kernels.Lane{
		Magic: kernels.Magic, Version: kernels.Version, Size: kernels.LaneSize, Sqid: 1,
		Sq: shared(p.sq), Cq: shared(p.cq), SqDoorbell: shared(p.doorbells), CqDoorbell: shared(p.doorbells + 32),
		Work: own(p.work), Results: own(p.results), Cids: own(p.cids), Prp: shared(p.prp), PrpIova: prpIOVA,
		Control: own(p.control), Status: own(p.status), Counters: own(p.counters),
		SqSize: s.sq, CqSize: s.cq, RingSize: s.ring, CidCount: s.cids, PrpStride: s.stride, PageSize: 4096,
	}
}

// prpIOVA is where the fake controller sees the lane's PRP lists.
const prpIOVA = 0x7f_0000_0000

// rig is one lane, the CPU that feeds it, and a fake controller. The three share one block of memory that the CPU sees.
type rig struct {
	*device
	team
	shape
	mem      gpu.Memory
	lane     *kernels.Lane
	control  *kernels.Control
	status   *kernels.Status
	counters *kernels.Counters
	work     []kernels.WorkSlot
	results  []kernels.ResultSlot
	sq, cq   []byte
	sqDB     *uint32
	cqDB     *uint32
	prp      []byte
	stepFn   gpu.Function
	block    gpu.Dim3 // the team's threads
	word     gpu.Memory
	launches uint64 // of resident kernels

	now        uint64
	args       []uint64
	workNext   uint32 // the CPU's positions
	resultNext uint32

	sqHead, cqTail uint32 // the controller's
	phase          uint16
}

func newRig(t testing.TB, open opener, s shape) *rig {
	t.Helper()
	return start(t, open.Open).rig(open.team, s)
}

// rig is a lane on the device.
func (d *device) rig(workers team, s shape) *rig {
	d.t.Helper()
	r := &rig{device: d, team: workers, shape: s, now: 1000, phase: 1}
	at := s.places()
	r.mem = d.alloc(gpu.HostCoherent, at.size)
	r.word = d.word(1)

	b := r.mem.Host()
	base := int64(r.mem.Addr())
	r.lane = (*kernels.Lane)(unsafe.Pointer(&b[at.lane]))
	r.control = (*kernels.Control)(unsafe.Pointer(&b[at.control]))
	r.status = (*kernels.Status)(unsafe.Pointer(&b[at.status]))
	r.counters = (*kernels.Counters)(unsafe.Pointer(&b[at.counters]))
	r.work = unsafe.Slice((*kernels.WorkSlot)(unsafe.Pointer(&b[at.work])), s.ring)
	r.results = unsafe.Slice((*kernels.ResultSlot)(unsafe.Pointer(&b[at.results])), s.ring)
	r.sq, r.cq = b[at.sq:at.sq+int64(s.sq)*64], b[at.cq:at.cq+int64(s.cq)*16]
	r.prp = b[at.prp : at.prp+int64(s.cids)*int64(s.stride)]
	r.sqDB, r.cqDB = (*uint32)(unsafe.Pointer(&b[at.doorbells])), (*uint32)(unsafe.Pointer(&b[at.doorbells+32]))
	*r.lane = s.describe(uint64(base), uint64(base))
	r.block = gpu.Dim3{X: uint32(r.threads(d.Facts())), Y: 1, Z: 1}
	var err error
	r.stepFn, err = d.module.Function(r.team.step)
	require.NoError(d.t, err)
	r.args = []uint64{uint64(base + at.lane), 1, 0}
	return r
}

// word is memory of the device for n words of resident launches.
func (d *device) word(n int) gpu.Memory {
	d.t.Helper()
	m := d.alloc(gpu.DevicePlain, int64(8*n))
	require.NoError(d.t, d.stream.Fill(m.Addr(), 0, int64(8*n)))
	require.NoError(d.t, d.stream.Wait(patience))
	return m
}

// stay launches the resident kernel in the background.
func (r *rig) stay(idle, limit uint64) (wait func()) {
	r.t.Helper()
	r.launches++
	return r.background(r.resident, r.args[0], 1, idle, limit, uint64(r.word.Addr()), r.launches)
}

// silent are the opcodes, a bit each, whose completions say nothing more, as engines have it.
const silent = 1<<opFlush | 1<<opWrite | 1<<opRead

// newLane is a rig whose lane is ready.
func newLane(t testing.TB, open opener, s shape) *rig {
	t.Helper()
	return newSilentLane(t, open, s, 0)
}

// newSilentLane is newLane with completions that say nothing more for some opcodes.
func newSilentLane(t testing.TB, open opener, s shape, silent uint64) *rig {
	t.Helper()
	r := newRig(t, open, s)
	r.lane.Silent = silent
	r.reset()
	require.Equal(t, kernels.StateReady, r.status.State)
	return r
}

// reset makes the lane ready, and the controller too.
func (r *rig) reset() {
	r.t.Helper()
	r.launch(kernels.ResetKernel, 1, 1, r.args[0], 1)
	r.sqHead, r.cqTail, r.phase = 0, 0, 1
	atomic.StoreUint32(r.sqDB, 0)
	atomic.StoreUint32(r.cqDB, 0)
}

// run does one step and says whether the lane did anything.
func (r *rig) run() bool {
	r.t.Helper()
	r.now++
	r.args[2] = r.now
	require.NoError(r.t, r.stream.Launch(r.stepFn, one, r.block, r.args...))
	require.NoError(r.t, r.stream.Wait(patience))
	return atomic.LoadUint32(&r.status.Progress) != 0
}

// submit puts a work item into the ring.
func (r *rig) submit(w kernels.Work) {
	slot := &r.work[r.workNext%r.ring]
	r.workNext++
	slot.Put(&w, r.workNext)
}

// take takes what the lane has answered.
func (r *rig) take() []kernels.Result {
	var got []kernels.Result
	for {
		var res kernels.Result
		if !r.results[r.resultNext%r.ring].Take(&res, r.resultNext+1) {
			return got
		}
		got = append(got, res)
		r.resultNext++
	}
}

// sqe is a submission queue entry as the controller reads it.
type sqe struct {
	opcode, flags uint8
	cid           uint16
	nsid          uint32
	reserved      uint64
	mptr          uint64
	prp1, prp2    uint64
	cdw           [6]uint32 // 10 to 15
}

// fetch is what the controller reads when the doorbell has been rung: all entries up to the tail.
func (r *rig) fetch() []sqe {
	r.t.Helper()
	tail := atomic.LoadUint32(r.sqDB)
	require.Less(r.t, tail, r.shape.sq, "the SQ doorbell is an index of the queue")
	var got []sqe
	for ; r.sqHead != tail; r.sqHead = (r.sqHead + 1) % r.shape.sq {
		b := r.sq[r.sqHead*64:][:64]
		le := binary.LittleEndian
		e := sqe{opcode: b[0], flags: b[1], cid: le.Uint16(b[2:]), nsid: le.Uint32(b[4:]), reserved: le.Uint64(b[8:]),
			mptr: le.Uint64(b[16:]), prp1: le.Uint64(b[24:]), prp2: le.Uint64(b[32:])}
		for i := range e.cdw {
			e.cdw[i] = le.Uint32(b[40+4*i:])
		}
		got = append(got, e)
	}
	return got
}

// complete posts a completion: DW3, with the phase, last. status is DW3 31:17.
func (r *rig) complete(cid, status uint16, dw0, dw1 uint32) {
	r.completeAs(1, cid, status, dw0, dw1)
}

func (r *rig) completeAs(sqid, cid, status uint16, dw0, dw1 uint32) {
	b := r.cq[r.cqTail*16:][:16]
	binary.LittleEndian.PutUint32(b, dw0)
	binary.LittleEndian.PutUint32(b[4:], dw1)
	binary.LittleEndian.PutUint32(b[8:], r.sqHead|uint32(sqid)<<16)
	dw3 := (*uint32)(unsafe.Pointer(&b[12]))
	atomic.StoreUint32(dw3, uint32(cid)|uint32(status<<1|r.phase)<<16)
	if r.cqTail++; r.cqTail == r.shape.cq {
		r.cqTail = 0
		r.phase ^= 1
	}
}
