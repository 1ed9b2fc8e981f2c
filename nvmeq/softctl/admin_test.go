package softctl

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQueueCommands(t *testing.T) {
	h := newHost(t, Options{Queues: 4, Depth: 64}).enable()
	_, at := h.alloc(64 << 10)
	end := h.base + 16<<20
	q := h.queue(1, 16) // CQ 1, SQ 1
	_ = q
	for _, tc := range []struct {
		name string
		want Status
		cmd  raw
	}{
		{"CQ 0", invalidQueueID, createCQ(0, 16, at)},
		{"CQ beyond", invalidQueueID, createCQ(5, 16, at)},
		{"CQ ffff", invalidQueueID, createCQ(0xffff, 16, at)},
		{"CQ exists", invalidQueueID, createCQ(1, 16, at)},
		{"CQ size 1", invalidQueueSize, createCQ(2, 1, at)},
		{"CQ too large", invalidQueueSize, createCQ(2, 65, at)},
		{"CQ not contiguous", invalidField, createCQ(2, 16, at).dw(11, 0)},
		{"CQ vector", invalidInterruptVector, createCQ(2, 16, at).dw(11, 1|5<<16)},
		{"CQ offset", invalidPRPOffset, createCQ(2, 16, at+16)},
		{"CQ unmapped", dataTransferError, createCQ(2, 16, 0)},
		{"CQ runs out", dataTransferError, createCQ(2, 64, end)},
		{"CQ SGL", invalidField, createCQ(2, 16, at).dw(0, 0x05|1<<14)},
		{"CQ fused", invalidField, createCQ(2, 16, at).dw(0, 0x05|1<<8)},
		{"SQ 0", invalidQueueID, createSQ(0, 16, at, 1)},
		{"SQ beyond", invalidQueueID, createSQ(5, 16, at, 1)},
		{"SQ exists", invalidQueueID, createSQ(1, 16, at, 1)},
		{"SQ on CQ 0", invalidQueueID, createSQ(2, 16, at, 0)},
		{"SQ on CQ beyond", invalidQueueID, createSQ(2, 16, at, 5)},
		{"SQ without CQ", invalidCompletionQueue, createSQ(2, 16, at, 3)},
		{"SQ size 1", invalidQueueSize, createSQ(2, 1, at, 1)},
		{"SQ too large", invalidQueueSize, createSQ(2, 65, at, 1)},
		{"SQ not contiguous", invalidField, createSQ(2, 16, at, 1).dw(11, 1<<16)},
		{"SQ offset", invalidPRPOffset, createSQ(2, 16, at+64, 1)},
		{"SQ unmapped", dataTransferError, createSQ(2, 16, 4096, 1)},
		{"delete CQ 0", invalidQueueID, cmdOf(0x04, 0)},
		{"delete CQ that is not there", invalidQueueID, cmdOf(0x04, 0).dw(10, 2)},
		{"delete CQ in use", invalidQueueDeletion, cmdOf(0x04, 0).dw(10, 1)},
		{"delete SQ 0", invalidQueueID, cmdOf(0x00, 0)},
		{"delete SQ that is not there", invalidQueueID, cmdOf(0x00, 0).dw(10, 2)},
		{"delete SQ beyond", invalidQueueID, cmdOf(0x00, 0).dw(10, 0xffff)},
		{"queues in use", commandSequenceError, cmdOf(0x09, 0).dw(10, 7).dw(11, 1|1<<16)},
		{"second SQ on CQ 1", success, createSQ(2, 64, at, 1)},
		{"delete SQ 1", success, cmdOf(0x00, 0).dw(10, 1)},
		{"CQ still in use", invalidQueueDeletion, cmdOf(0x04, 0).dw(10, 1)},
		{"delete SQ 2", success, cmdOf(0x00, 0).dw(10, 2)},
		{"delete CQ 1", success, cmdOf(0x04, 0).dw(10, 1)},
		{"CQ 1 again", success, createCQ(1, 2, at)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.t = t
			h.expect(tc.want, h.admin, tc.cmd)
		})
	}
}

func TestEntrySizesAreWantedForQueues(t *testing.T) {
	h := newHost(t, Options{})
	h.admin = h.newPair(0, 32)
	h.c.Write32(0x24, 31|31<<16)
	h.c.Write64(0x28, h.admin.sqAt)
	h.c.Write64(0x30, h.admin.cqAt)
	h.c.Write32(0x14, 1)
	_, at := h.alloc(4096)
	h.expect(invalidQueueSize, h.admin, createCQ(1, 16, at))
	h.c.Write32(0x14, enableCC)
	h.expect(success, h.admin, createCQ(1, 16, at))
}

func TestNumberOfQueues(t *testing.T) {
	h := newHost(t, Options{Queues: 4}).enable()
	get := func() uint32 { return h.adminDo(cmdOf(0x0a, 0).dw(10, 7))[0] }
	require.Equal(t, uint32(3|3<<16), get())
	h.expect(invalidField, h.admin, cmdOf(0x09, 0).dw(10, 7).dw(11, 0xffff))
	h.expect(invalidField, h.admin, cmdOf(0x09, 0).dw(10, 7).dw(11, 0xffff<<16))
	require.Equal(t, uint32(3|3<<16), h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 7).dw(11, 63|63<<16))[0])
	require.Equal(t, uint32(1|0<<16), h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 7).dw(11, 1))[0])
	require.Equal(t, uint32(1), get())
	_, at := h.alloc(4096)
	h.expect(invalidQueueID, h.admin, createCQ(2, 16, at))
	h.expect(success, h.admin, createCQ(1, 16, at))
	_, at = h.alloc(4096)
	h.expect(success, h.admin, createSQ(2, 16, at, 1))
	h.expect(invalidQueueID, h.admin, createSQ(3, 16, at, 1))
}

func TestUnsupportedAdminOpcodes(t *testing.T) {
	h := newHost(t, Options{}).enable()
	known := map[uint8]bool{0: true, 1: true, 2: true, 4: true, 5: true, 6: true, 8: true, 9: true, 0xa: true, 0xc: true}
	for op := 0; op < 256; op++ {
		if !known[uint8(op)] {
			h.expect(invalidOpcode, h.admin, cmdOf(uint8(op), 1))
		}
	}
}

func TestFeatures(t *testing.T) {
	h := newHost(t, Options{Namespaces: 2}).enable()
	get := func(fid, sel, dw11, nsid uint32) raw { return cmdOf(0x0a, nsid).dw(10, fid|sel<<8).dw(11, dw11) }
	set := func(fid, v, nsid uint32) raw { return cmdOf(0x09, nsid).dw(10, fid).dw(11, v) }
	for _, tc := range []struct {
		name   string
		cmd    raw
		want   Status
		result uint32
	}{
		{"arbitration", set(1, 0x01020304, 0), success, 0},
		{"arbitration back", get(1, 0, 0, 0), success, 0x01020304},
		{"arbitration default", get(1, 1, 0, 0), success, 0},
		{"arbitration saved", get(1, 2, 0, 0), success, 0},
		{"arbitration capabilities", get(1, 3, 0, 0), success, 4},
		{"select 4", get(1, 4, 0, 0), invalidField, 0},
		{"save", cmdOf(0x09, 0).dw(10, 1|1<<31), featureNotSaveable, 0},
		{"per namespace where it is not", set(1, 0, 1), featureNotNamespaceBound, 0},
		{"power", set(2, 0, 0), success, 0},
		{"power state 1", set(2, 1, 0), invalidField, 0},
		{"temperature over", get(4, 0, 0, 0), success, 343},
		{"temperature under", get(4, 0, 1<<20, 0), success, 0},
		{"temperature sensor 1", get(4, 0, 1<<16, 0), invalidField, 0},
		{"temperature set", set(4, 350, 0), success, 0},
		{"temperature back", get(4, 0, 0, 0), success, 350},
		{"temperature set all", set(4, 351|15<<16, 0), success, 0},
		{"temperature set sensor 2", set(4, 351|2<<16, 0), invalidField, 0},
		{"temperature set THSEL 2", set(4, 351|2<<20, 0), invalidField, 0},
		{"error recovery", set(5, 7, 2), success, 0},
		{"error recovery back", get(5, 0, 0, 2), success, 7},
		{"error recovery other", get(5, 0, 0, 1), success, 0},
		{"error recovery all", set(5, 9, 0xffffffff), success, 0},
		{"error recovery of 1", get(5, 0, 0, 1), success, 9},
		{"error recovery of 0", get(5, 0, 0, 0), invalidNamespace, 0},
		{"error recovery of 3", set(5, 0, 3), invalidNamespace, 0},
		{"DULBE", set(5, 1<<16, 1), invalidField, 0},
		{"write cache", get(6, 0, 0, 0), success, 1},
		{"write cache off", set(6, 0, 0), success, 0},
		{"write cache back", get(6, 0, 0, 0), success, 0},
		{"write cache default", get(6, 1, 0, 0), success, 1},
		{"write cache on", set(6, 1, 0), success, 0},
		{"coalescing", set(8, 0xabcd, 0), success, 0},
		{"coalescing back", get(8, 0, 0, 0), success, 0xabcd},
		{"vector", set(9, 3|1<<16, 0), success, 0},
		{"vector back", get(9, 0, 3, 0), success, 3 | 1<<16},
		{"vector beyond", set(9, 33, 0), invalidField, 0},
		{"vector beyond get", get(9, 0, 33, 0), invalidField, 0},
		{"atomicity", set(0xa, 1, 0), success, 0},
		{"atomicity back", get(0xa, 0, 0, 0), success, 1},
		{"async events", set(0xb, 3, 0xffffffff), success, 0},
		{"async events back", get(0xb, 0, 0, 0), success, 3},
		{"keep alive timer", set(0xf, 1, 0), invalidField, 0},
		{"keep alive timer get", get(0xf, 0, 0, 0), invalidField, 0},
		{"unknown", get(0xee, 3, 0, 0), invalidField, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.t = t
			require.Equal(t, tc.result, h.expect(tc.want, h.admin, tc.cmd)[0])
		})
	}
	h = newHost(t, Options{NoWriteCache: true}).enable()
	h.expect(invalidField, h.admin, get(6, 0, 0, 0))
	h.expect(invalidField, h.admin, set(6, 1, 0))
}

func TestAbort(t *testing.T) {
	h := newHost(t, Options{Latency: time.Hour}).enable()
	q := h.queue(1, 16)
	cid := h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.ring(q)
	require.True(t, h.c.Step(1), "fetched")
	require.False(t, h.c.Step(1), "not due")
	abort := func(sqid, cid uint16) raw { return cmdOf(0x08, 0).dw(10, uint32(sqid)|uint32(cid)<<16) }
	require.Equal(t, uint32(1), h.expect(success, h.admin, abort(1, 999))[0], "no such command")
	require.Equal(t, uint32(0), h.expect(success, h.admin, abort(1, cid))[0])
	e, ok := h.poll(q)
	require.True(t, ok)
	require.Equal(t, cid, e.cid())
	require.Equal(t, abortRequested, e.status())
	require.Equal(t, uint32(1), h.expect(invalidField, h.admin, abort(9, cid))[0], "no such queue")
	require.Equal(t, uint32(1), h.expect(invalidField, h.admin, abort(999, cid))[0])
	require.Equal(t, uint32(1), h.expect(success, h.admin, abort(0, 999))[0])

	h.expect(success, h.admin, cmdOf(0x00, 0).dw(10, 1)) // deletes SQ 1, with one command in it
	e, ok = h.poll(q)
	require.True(t, ok)
	require.Equal(t, cid+1, e.cid())
	require.Equal(t, abortedSQDeletion, e.status())
}
