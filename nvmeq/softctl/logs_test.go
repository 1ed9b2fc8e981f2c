package softctl

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// log reads n bytes of a log page.
func (h *host) log(want Status, id uint32, n int, edit func(raw) raw) []byte {
	h.t.Helper()
	mark := h.used
	b, at := h.alloc(n)
	numd := uint32(n/4 - 1)
	r := cmdOf(0x02, 0xffffffff).dw(10, id|numd<<16).dw(11, numd>>16)
	if edit != nil {
		r = edit(r)
	}
	p1, p2 := h.transfer(at, n)
	h.used = mark
	h.expect(want, h.admin, r.prp(p1, p2))
	return bytes.Clone(b[:n]) // the memory is used again
}

func TestErrorLog(t *testing.T) {
	h, q := ready(t, Options{})
	le := binary.LittleEndian
	b := h.log(success, 1, 4096, nil)
	require.Equal(t, make([]byte, 4096), b, "nothing failed yet")

	h.expect(lbaOutOfRange, q, rw(2, 1, 1<<40, 1).prp(h.base, 0))
	h.expect(invalidOpcode, h.admin, cmdOf(0x80, 7))
	b = h.log(success, 1, 4096, nil)
	require.Equal(t, uint64(2), le.Uint64(b[0:]), "newest first")
	require.Equal(t, uint16(0), le.Uint16(b[8:]), "SQID")
	require.Equal(t, h.admin.cid-1, le.Uint16(b[10:]), "CID")
	require.Equal(t, uint32(7), le.Uint32(b[24:]), "NSID")
	require.Equal(t, invalidOpcode, Status(le.Uint16(b[12:])>>1)&^statusMore)
	b = b[64:]
	require.Equal(t, uint64(1), le.Uint64(b[0:]))
	require.Equal(t, uint16(1), le.Uint16(b[8:]))
	require.Equal(t, q.cid, le.Uint16(b[10:]))
	require.Equal(t, uint64(1<<40), le.Uint64(b[16:]), "LBA")
	require.Zero(t, le.Uint64(b[64:]), "the third entry is empty")

	for range 100 {
		h.expect(invalidOpcode, q, cmdOf(0x80, 1))
	}
	b = h.log(success, 1, 4096, nil)
	require.Equal(t, uint64(102), le.Uint64(b[0:]))
	require.Equal(t, uint64(39), le.Uint64(b[63*64:]))
	tail := h.log(success, 1, 64, func(r raw) raw { return r.dw(12, 63*64) })
	require.Equal(t, b[63*64:], tail, "by offset")
}

func TestLogPages(t *testing.T) {
	h, q := ready(t, Options{Firmware: "7.7"})
	_, at := h.alloc(4096)
	for range 3 {
		h.expect(success, q, rw(2, 1, 0, 8).prp(at, 0))
	}
	h.expect(success, q, rw(1, 1, 0, 8).prp(at, 0))
	h.expect(invalidOpcode, q, cmdOf(0x80, 1))
	le := binary.LittleEndian
	b := h.log(success, 2, 512, nil)
	require.Zero(t, b[0], "critical warning")
	require.Equal(t, uint16(310), le.Uint16(b[1:]))
	require.Equal(t, byte(100), b[3])
	require.Equal(t, uint64(1), le.Uint64(b[32:]), "data units read")
	require.Equal(t, uint64(1), le.Uint64(b[48:]), "data units written")
	require.Equal(t, uint64(3), le.Uint64(b[64:]), "reads")
	require.Equal(t, uint64(1), le.Uint64(b[80:]), "writes")
	require.Equal(t, uint64(1), le.Uint64(b[176:]), "error log entries")

	b = h.log(success, 3, 512, nil)
	require.Equal(t, byte(1), b[0])
	require.Equal(t, "7.7     ", string(b[8:16]))

	b = h.log(success, 5, 4096, nil)
	require.Equal(t, uint32(1), le.Uint32(b[4*6:])&1, "Identify")
	require.Zero(t, le.Uint32(b[4*0x80:]), "Format NVM")
	require.Equal(t, uint32(3), le.Uint32(b[1024+4:]), "Write changes data")
	require.Equal(t, uint32(1), le.Uint32(b[1024+8:]), "Read does not")
	require.Zero(t, le.Uint32(b[1024+4*4:]), "Write Uncorrectable")

	for _, tc := range []struct {
		name string
		want Status
		id   uint32
		edit func(raw) raw
	}{
		{"supported pages are of 2.0", invalidLogPage, 0, nil},
		{"unknown", invalidLogPage, 0x70, nil},
		{"telemetry", invalidLogPage, 7, nil},
		{"offset not a dword", invalidField, 2, func(r raw) raw { return r.dw(12, 2) }},
		{"offset beyond", invalidField, 2, func(r raw) raw { return r.dw(12, 516) }},
		{"offset far beyond", invalidField, 2, func(r raw) raw { return r.dw(13, 1) }},
		{"offset at the end", success, 2, func(r raw) raw { return r.dw(12, 512) }},
		{"offset by index", invalidField, 2, func(r raw) raw { return r.dw(14, 1<<23) }},
		{"SMART of a namespace", invalidField, 2, func(r raw) raw { return r.dw(1, 1) }},
		{"SMART of the controller", success, 2, func(r raw) raw { return r.dw(1, 0) }},
		{"too long", invalidField, 1, func(r raw) raw { return r.dw(11, 0x10) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h.t = t
			h.log(tc.want, tc.id, 512, tc.edit)
		})
	}
	h = newHost(t, Options{Version: Version20, ReadOnly: true}).enable()
	b = h.log(success, 0, 1024, nil)
	require.Equal(t, byte(1), b[4*2])
	require.Zero(t, b[4*7])
	require.Equal(t, byte(1<<3), h.log(success, 2, 512, nil)[0], "read-only media")
}

func TestAsyncEvents(t *testing.T) {
	h, q := ready(t, Options{Queues: 4})
	_ = q
	request := func() uint16 {
		cid := h.put(h.admin, cmdOf(0x0c, 0))
		h.ring(h.admin)
		h.c.Step(0)
		return cid
	}
	none := func() {
		t.Helper()
		h.c.Step(0)
		_, ok := h.poll(h.admin)
		require.False(t, ok)
	}
	expect := func(cid uint16, want uint32) {
		t.Helper()
		h.c.Step(0)
		e, ok := h.poll(h.admin)
		require.True(t, ok)
		require.Equal(t, cid, e.cid())
		require.Equal(t, want, e[0])
		require.Equal(t, success, e.status())
	}
	cids := []uint16{request(), request(), request(), request()}
	none()
	h.expect(asyncEventLimitExceeded, h.admin, cmdOf(0x0c, 0))

	h.c.Write32(0x1000+2*3*4, 1) // doorbell of SQ 3, which is not there
	expect(cids[0], 0x010000)
	h.c.Write32(0x1000+(2*200+1)*4, 1)
	none() // errors are masked until the log page is read
	h.log(success, 1, 64, func(r raw) raw { return r.dw(10, r[10]|1<<15) })
	none() // Retain Asynchronous Event
	h.log(success, 1, 64, nil)
	expect(cids[1], 0x010000)

	// The same by a store to the BAR, seen when the queue is stepped.
	h.log(success, 1, 64, nil)
	h.store(0x1000+2*2*4, 5)
	require.True(t, h.c.Step(2))
	require.False(t, h.c.Step(2), "reported once")
	expect(cids[2], 0x010000)

	// A tail outside the queue.
	h.log(success, 1, 64, nil)
	h.store(0x1000+2*4, 16)
	require.False(t, h.c.Step(1))
	require.False(t, h.c.Step(1))
	expect(cids[3], 0x010100)
	h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0)) // and the queue lives on

	// Temperature: the threshold goes below what it is.
	cid := request()
	h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 4).dw(11, 300))
	expect(cid, 0x020101)
	require.Equal(t, byte(2), h.log(success, 2, 512, nil)[0])

	// An outstanding request can be aborted, and its CID is taken while it is outstanding.
	cid = request()
	h.admin.cid--
	h.expect(commandIDConflict, h.admin, cmdOf(0x0c, 0))
	h.put(h.admin, cmdOf(0x08, 0).dw(10, uint32(cid)<<16))
	h.ring(h.admin)
	h.c.Step(0)
	e, _ := h.poll(h.admin)
	require.Equal(t, cid, e.cid())
	require.Equal(t, abortRequested, e.status())
	e, _ = h.poll(h.admin)
	require.Equal(t, success, e.status())
	require.Zero(t, e[0])
}

func TestInvalidDoorbellValues(t *testing.T) {
	h, q := ready(t, Options{})
	for _, v := range []uint32{16, 17, 0xffff, 0x10000, ^uint32(0)} {
		h.store(0x1000+2*4, v)
		require.False(t, h.c.Step(1), "tail %#x", v)
		h.store(0x1000+3*4, v)
		require.False(t, h.c.Step(1), "head %#x", v)
	}
	h.store(0x1000+3*4, 5) // consumes completions that were never written
	require.False(t, h.c.Step(1))
	h.store(0x1000+3*4, 0)
	for range 40 {
		h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0))
	}
	require.Equal(t, uint32(1), h.c.Read32(0x1c))
}
