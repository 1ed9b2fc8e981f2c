package nvme

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRegisters(t *testing.T) {
	c := CAP(0x0818_0030_1e03_00ff | 0x5<<32 | 1<<37 | 1<<57)
	require.Equal(t, 256, c.MQES())
	require.Equal(t, 15*time.Second, c.TO())
	require.EqualValues(t, 5, c.DSTRD())
	require.Equal(t, Stride(128), c.Stride())
	require.Equal(t, CSSNVM, c.CSS())
	require.EqualValues(t, 1<<20, c.MPSMIN())
	require.EqualValues(t, 8192, c.MPSMAX())
	require.True(t, c.CMBS())
	require.True(t, c.CRWMS())
	require.Equal(t, "1.4.2", VS(0x010402).String())
	require.True(t, VS(0x020000).AtLeast(1, 4))
	require.True(t, VS(0x010400).AtLeast(1, 4))
	require.False(t, VS(0x010300).AtLeast(1, 4))
	require.Equal(t, 2*time.Second, CRTO(0x0006_0004).CRWMT())
	require.Equal(t, AQA(0x00ff_003f), NewAQA(64, 256))

	cc := CC(0).WithCSS(CCCSSAll).WithMPS(8192).WithIOSQES(64).WithIOCQES(16).WithSHN(SHNNormal).WithEN(true)
	require.Equal(t, CC(0x0046_40e1), cc)
	require.True(t, cc.EN())
	require.Equal(t, SHNNormal, cc.SHN())
	require.Equal(t, 64, cc.IOSQES())
	require.Equal(t, 16, cc.IOCQES())
	require.Equal(t, CC(0x0046_00e0), cc.WithEN(false).WithSHN(SHNNone))

	require.True(t, CSTS(0xffffffff).Gone())
	require.Equal(t, SHSTComplete, CSTS(0b1001).SHST())
	require.True(t, CSTS(2).CFS() && !CSTS(2).RDY())

	require.EqualValues(t, 64<<10, CMBSZ(0x100).SZU())
	require.EqualValues(t, 3*64<<10, CMBSZ(0x3101).Size())
	require.Zero(t, CMBSZ(0x3701).Size())
	require.EqualValues(t, 5, CMBLOC(0x5002).OFST())
	require.Equal(t, 2, CMBLOC(0x5002).BIR())
	require.Equal(t, CMBMSC(0x1234_5003), NewCMBMSC(0x1234_5000, true))
	require.True(t, NewCMBMSC(0, false).CRE())
}

func TestDoorbells(t *testing.T) {
	for _, tc := range []struct {
		dstrd  uint64
		qid    uint16
		sq, cq int64
	}{{0, 0, 0x1000, 0x1004}, {0, 3, 0x1018, 0x101c}, {1, 1, 0x1010, 0x1018}, {4, 2, 0x1100, 0x1140}, {15, 1, 0x41000, 0x61000}} {
		s := CAP(tc.dstrd << 32).Stride()
		require.Equal(t, tc.sq, s.SQ(tc.qid))
		require.Equal(t, tc.cq, s.CQ(tc.qid))
		require.Equal(t, tc.cq+4, s.End(tc.qid))
	}
}

// FuzzRegisters: whatever a register reads, what is derived from it is a possible size.
func FuzzRegisters(f *testing.F) {
	f.Add(uint64(0x0818_0030_1e03_00ff), uint32(0x3701))
	f.Add(^uint64(0), ^uint32(0))
	f.Fuzz(func(t *testing.T, a uint64, b uint32) {
		c := CAP(a)
		require.True(t, c.MQES() >= 1 && c.MQES() <= 1<<16)
		require.True(t, c.MPSMIN() >= 4096 && c.MPSMAX() >= 4096)
		require.GreaterOrEqual(t, c.TO(), time.Duration(0))
		require.Positive(t, c.Stride().SQ(0xffff))
		require.Equal(t, c.Stride().CQ(0xffff)+4, c.Stride().End(0xffff))
		require.GreaterOrEqual(t, CRTO(b).CRWMT(), time.Duration(0))
		require.GreaterOrEqual(t, CMBSZ(b).Size(), int64(0))
		require.GreaterOrEqual(t, CMBLOC(b).OFST(), int64(0))
		require.NotEmpty(t, VS(b).String())
		require.NotEmpty(t, CSTS(b).String())
		cc := CC(b).WithEN(true).WithSHN(SHNNormal).WithIOSQES(64).WithIOCQES(16)
		require.True(t, cc.EN() && cc.SHN() == SHNNormal && cc.IOSQES() == 64 && cc.IOCQES() == 16)
	})
}
