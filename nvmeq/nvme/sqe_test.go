package nvme

import (
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// encodeCQE writes what a controller would.
func encodeCQE(c CQE, b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b[0:], c.DW0)
	le.PutUint32(b[4:], c.DW1)
	le.PutUint16(b[8:], c.SQHD)
	le.PutUint16(b[10:], c.SQID)
	v := uint32(c.CID) | uint32(c.Status)<<17
	if c.Phase {
		v |= 1 << 16
	}
	le.PutUint32(b[12:], v)
}

func TestEntries(t *testing.T) {
	s := SQE{Opcode: IOWrite, Flags: 0x40, CID: 0x1234, NSID: 7, CDW2: 2, CDW3: 3, MPTR: 0x1122334455667788, PRP1: 0xa000, PRP2: 0xb000,
		CDW10: 10, CDW11: 11, CDW12: 12, CDW13: 13, CDW14: 14, CDW15: 15}
	b := make([]byte, SQESize)
	s.Encode(b)
	require.Equal(t, "01403412070000000200000003000000887766554433221100a000000000000000b00000000000000a0000000b0000000c0000000d0000000e0000000f000000",
		hex.EncodeToString(b))
	got, err := DecodeSQE(b)
	require.NoError(t, err)
	require.Equal(t, s, got)

	c := CQE{DW0: 1, DW1: 2, SQHD: 3, SQID: 4, CID: 5, Phase: true, Status: NewStatus(SCTMedia, 0x81, true)}
	b = make([]byte, CQESize)
	encodeCQE(c, b)
	require.Equal(t, "0100000002000000030004000500"+"0385", hex.EncodeToString(b))
	cqe, err := DecodeCQE(b)
	require.NoError(t, err)
	require.Equal(t, c, cqe)

	for _, n := range []int{0, 15, 17, 63, 65} {
		_, err := DecodeSQE(make([]byte, n))
		require.Error(t, err)
		_, err = DecodeCQE(make([]byte, n))
		require.Error(t, err)
	}
}

func FuzzSQE(f *testing.F) {
	f.Add(make([]byte, SQESize))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSQE(b)
		if err != nil {
			require.NotEqual(t, SQESize, len(b))
			return
		}
		back := make([]byte, SQESize)
		s.Encode(back)
		require.Equal(t, b, back)
		_ = s.Err(NewStatus(SCTGeneric, 1, true), false).Error()
	})
}

func FuzzCQE(f *testing.F) {
	f.Add(make([]byte, CQESize))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeCQE(b)
		if err != nil {
			require.NotEqual(t, CQESize, len(b))
			return
		}
		back := make([]byte, CQESize)
		encodeCQE(c, back)
		require.Equal(t, b, back)
		require.NotEmpty(t, c.Status.String())
	})
}

func TestRanges(t *testing.T) {
	b := make([]byte, 2*RangeSize)
	for i := range b {
		b[i] = 0xff
	}
	EncodeRanges(b, []Range{{SLBA: 0x1122334455667788, NLB: 9}, {SLBA: 1, NLB: 0xffffffff}})
	require.Equal(t, "0000000009000000"+"8877665544332211"+"00000000ffffffff"+"0100000000000000", hex.EncodeToString(b))
}

func TestDescribe(t *testing.T) {
	require.Equal(t, "Write of 8 blocks at LBA 4096 of namespace 1", Describe(IOWrite, false, 1, 4096, 8))
	require.Equal(t, "Read of 1 block at LBA 0 of namespace 2", Describe(IORead, false, 2, 0, 1))
	require.Equal(t, "Flush", Describe(IOFlush, false, 0xffffffff, 0, 0))
	require.Equal(t, "Identify", Describe(AdminIdentify, true, 0, 0, 0))
}
