package softctl

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func (h *host) identify(cns, nsid, dw11 uint32) ([]byte, Status) {
	h.t.Helper()
	mark := h.used
	b, at := h.alloc(4096)
	h.used = mark
	for i := range b {
		b[i] = 0xaa
	}
	e := h.adminDo(cmdOf(0x06, nsid).dw(10, cns).dw(11, dw11).prp(at, 0))
	return b, e.status() &^ statusMore
}

func TestIdentifyController(t *testing.T) {
	h := newHost(t, Options{Serial: "S1", Model: "M1", Firmware: "F1", MaxTransfer: 256 << 10, Namespaces: 3}).enable()
	b, st := h.identify(1, 0, 0)
	require.Equal(t, success, st)
	le := binary.LittleEndian
	require.Equal(t, fmt.Sprintf("%-20s", "S1"), string(b[4:24]))
	require.Equal(t, fmt.Sprintf("%-40s", "M1"), string(b[24:64]))
	require.Equal(t, fmt.Sprintf("%-8s", "F1"), string(b[64:72]))
	require.Equal(t, byte(6), b[77], "MDTS")
	require.Equal(t, uint32(0x10400), le.Uint32(b[80:]), "VER")
	require.Equal(t, byte(1), b[111], "CNTRLTYPE")
	require.Zero(t, le.Uint16(b[256:]), "OACS")
	require.Equal(t, byte(3), b[259], "AERL")
	require.Equal(t, byte(0x66), b[512], "SQES")
	require.Equal(t, byte(0x44), b[513], "CQES")
	require.Equal(t, uint32(3), le.Uint32(b[516:]), "NN")
	require.Equal(t, uint16(1|1<<2|1<<3|1<<4|1<<7), le.Uint16(b[520:]), "ONCS")
	require.Equal(t, byte(7), b[525], "VWC")
	require.Zero(t, le.Uint32(b[536:]), "SGLS")
	require.True(t, strings.HasPrefix(string(b[768:]), "nqn.2014-08.org.nvmexpress:uuid:"))

	h = newHost(t, Options{NoWriteCache: true, MaxTransfer: Unlimited}).enable()
	b, _ = h.identify(1, 0, 0)
	require.Equal(t, byte(6), b[525], "VWC")
	require.Zero(t, b[77], "MDTS")
}

func TestIdentifyNamespaces(t *testing.T) {
	h := newHost(t, Options{BlockSize: 4096, Namespaces: 3}).enable()
	le := binary.LittleEndian
	total := uint64(0)
	for nsid := uint32(1); nsid <= 3; nsid++ {
		b, st := h.identify(0, nsid, 0)
		require.Equal(t, success, st)
		require.Equal(t, le.Uint64(b[0:]), le.Uint64(b[8:]), "NSZE, NCAP")
		require.LessOrEqual(t, le.Uint64(b[16:]), le.Uint64(b[8:]), "NUSE")
		require.Equal(t, uint32(12<<16), le.Uint32(b[128:]), "LBAF0")
		require.Equal(t, byte(1), b[33]&7, "DLFEAT")
		total += le.Uint64(b[0:]) * 4096
	}
	require.Equal(t, uint64(testSize), total, "the parts make up the image")

	for _, nsid := range []uint32{0, 4, 0xffffffff, 0xfffffffe} {
		for _, cns := range []uint32{0, 3, 0x11} {
			_, st := h.identify(cns, nsid, 0)
			require.Equal(t, invalidNamespace, st, "CNS %d NSID %#x", cns, nsid)
		}
	}
	list := func(cns, after uint32) []uint32 {
		b, st := h.identify(cns, after, 0)
		require.Equal(t, success, st)
		var r []uint32
		for i := 0; i < 1024 && le.Uint32(b[4*i:]) != 0; i++ {
			r = append(r, le.Uint32(b[4*i:]))
		}
		return r
	}
	for _, cns := range []uint32{2, 0x10} {
		require.Equal(t, []uint32{1, 2, 3}, list(cns, 0))
		require.Equal(t, []uint32{3}, list(cns, 2))
		require.Empty(t, list(cns, 3))
		require.Empty(t, list(cns, 0xfffffffd))
		_, st := h.identify(cns, 0xfffffffe, 0)
		require.Equal(t, invalidNamespace, st)
	}

	b, st := h.identify(3, 2, 0)
	require.Equal(t, success, st)
	require.Equal(t, []byte{2, 16, 0, 0}, b[:4], "NGUID")
	require.Equal(t, []byte{3, 16, 0, 0}, b[20:24], "UUID")
	require.Equal(t, []byte{0, 0}, b[40:42], "end of the list")
	n, _ := h.identify(0, 2, 0)
	require.NotEqual(t, make([]byte, 16), n[104:120])

	b, st = h.identify(0x13, 0, 0)
	require.Equal(t, success, st)
	require.Equal(t, []byte{1, 0, 1, 0}, b[:4], "controller list")
	for _, cns := range []uint32{4, 5, 6, 7, 8, 0x1c, 0x12, 0xff} {
		_, st := h.identify(cns, 1, 0)
		require.Equal(t, invalidField, st, "CNS %#x is not of version 1.4, or not supported", cns)
	}
}

func TestIdentifyVersion20(t *testing.T) {
	h := newHost(t, Options{Version: Version20, Namespaces: 2}).enable()
	for _, cns := range []uint32{5, 6, 7, 8, 0x1c} {
		_, st := h.identify(cns|1<<16, 1, 0)
		require.Equal(t, success, st, "CNS %#x", cns)
	}
	for _, cns := range []uint32{5, 6, 7} {
		_, st := h.identify(cns, 1, 2<<24)
		require.Equal(t, invalidField, st, "command set 2 is not there")
	}
	for _, cns := range []uint32{5, 8} {
		_, st := h.identify(cns, 3, 0)
		require.Equal(t, invalidNamespace, st)
	}
	_, st := h.identify(0x1c|7<<16, 1, 0)
	require.Equal(t, invalidField, st, "controller 7 is not there")
	b, _ := h.identify(3, 1, 0)
	require.Equal(t, []byte{4, 1, 0, 0, 0}, b[40:45], "CSI")
}

func TestIdentifyTransfer(t *testing.T) {
	h := newHost(t, Options{}).enable()
	b, at := h.alloc(8192)
	h.expect(success, h.admin, cmdOf(0x06, 0).dw(10, 1).prp(at+2048, at+4096))
	require.Equal(t, byte(0x66), b[2048+512])
	require.Equal(t, "nqn", string(b[2048+768:2048+771]))
	h.expect(invalidPRPOffset, h.admin, cmdOf(0x06, 0).dw(10, 1).prp(at+2048, at+4097))
	h.expect(invalidPRPOffset, h.admin, cmdOf(0x06, 0).dw(10, 1).prp(at+2, at+4096))
	h.expect(dataTransferError, h.admin, cmdOf(0x06, 0).dw(10, 1).prp(0, 0))
	h.expect(dataTransferError, h.admin, cmdOf(0x06, 0).dw(10, 1).prp(at+2048, 0))
}
