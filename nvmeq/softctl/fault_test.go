package softctl

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func opcode(op uint8) *uint8 { return &op }

func TestInjectedStatus(t *testing.T) {
	rules := &Rules{}
	h, q := ready(t, Options{Injector: rules})
	b, at := h.alloc(4096)
	random(1, b)
	rules.Add(Rule{Opcode: opcode(1), Skip: 1, Times: 2, Do: Verdict{Status: WriteFault}})
	rules.Add(Rule{Range: &[2]uint64{100, 8}, Do: Verdict{Status: unrecoveredRead | doNotRetry}})
	write := rw(1, 1, 0, 8).prp(at, 0)
	h.expect(success, q, write)
	b[0]++
	h.expect(WriteFault, q, write)
	h.expect(WriteFault, q, write)
	h.expect(success, q, rw(2, 1, 0, 8).prp(at, 0))
	require.NotEqual(t, b[0], random(1, make([]byte, 1))[0]+1, "a failed write writes nothing")
	h.expect(success, q, write)
	h.expect(success, q, rw(2, 1, 92, 8).prp(at, 0))
	h.expect(unrecoveredRead|doNotRetry, q, rw(2, 1, 93, 8).prp(at, 0))
	h.expect(unrecoveredRead|doNotRetry, q, rw(2, 1, 107, 1).prp(at, 0))
	h.expect(success, q, rw(2, 1, 108, 1).prp(at, 0))
	h.expect(success, q, cmdOf(0, 1)) // Flush has no range
	require.Equal(t, 4, rules.Fired())
	rules.Clear()
	h.expect(success, q, rw(2, 1, 100, 1).prp(at, 0))

	rules.Add(Rule{Admin: true, Opcode: opcode(6), Times: 1, Do: Verdict{Status: InternalError}})
	_, st := h.identify(1, 0, 0)
	require.Equal(t, InternalError, st)
	_, st = h.identify(1, 0, 0)
	require.Equal(t, success, st)
	h.c.SetInjector(nil)
}

func TestInjectedSilence(t *testing.T) {
	rules := &Rules{}
	h, q := ready(t, Options{Injector: rules})
	b, at := h.alloc(4096)
	random(9, b)
	rules.Add(Rule{Times: 1, Do: Verdict{Drop: true}})
	h.put(q, rw(1, 1, 0, 8).prp(at, 0))
	h.ring(q)
	require.True(t, h.c.Step(1))
	_, ok := h.poll(q)
	require.False(t, ok, "no completion comes")
	require.True(t, bytes.Equal(b, h.file()[:4096]), "the command was carried out")

	rules.Add(Rule{Times: 1, Do: Verdict{XorCID: 0x8000}})
	cid := h.put(q, rw(2, 1, 0, 8).prp(at, 0))
	h.ring(q)
	h.c.Step(1)
	e, ok := h.poll(q)
	require.True(t, ok)
	require.Equal(t, cid^0x8000, e.cid())
	h.expect(success, q, rw(2, 1, 0, 8).prp(at, 0))
}

func TestInjectedFatal(t *testing.T) {
	rules := &Rules{}
	h, q := ready(t, Options{Injector: rules})
	rules.Add(Rule{Skip: 1, Times: 1, Do: Verdict{Fatal: true}})
	h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.put(q, rw(2, 1, 0, 1).prp(h.base, 0))
	h.ring(q)
	h.c.Step(1)
	_, ok := h.poll(q)
	require.True(t, ok)
	_, ok = h.poll(q)
	require.False(t, ok)
	require.Equal(t, uint32(3), h.c.Read32(0x1c), "CFS")
	require.False(t, h.c.Step(1))
	require.False(t, h.c.Step(0))
	h.c.Write32(0x14, 0)
	h.enable()
	q = h.queue(1, 16)
	h.expect(success, q, rw(2, 1, 0, 1).prp(h.base, 0))
}
