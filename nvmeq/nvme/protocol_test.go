package nvme

import (
	"encoding/binary"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRegisters(t *testing.T) {
	c := CAP(0x0818_0030_1e03_00ff | 0x5<<32 | 1<<37 | 1<<57)
	require.Equal(t, 256, c.MQES())
	require.True(t, c.CQR())
	require.EqualValues(t, 1, c.AMS())
	require.Equal(t, 15*time.Second, c.TO())
	require.EqualValues(t, 5, c.DSTRD())
	require.Equal(t, Stride(128), c.Stride())
	require.True(t, c.NSSRS())
	require.Equal(t, CSSNVM, c.CSS())
	require.EqualValues(t, 1<<20, c.MPSMIN())
	require.EqualValues(t, 8192, c.MPSMAX())
	require.True(t, c.CMBS())
	require.True(t, c.CRWMS())
	require.False(t, c.CRIMS() || c.PMRS() || c.BPS() || c.NSSS())
	require.Equal(t, "1.4.2", VS(0x010402).String())
	require.True(t, VS(0x020000).AtLeast(1, 4))
	require.True(t, VS(0x010400).AtLeast(1, 4))
	require.False(t, VS(0x010300).AtLeast(1, 4))
	require.Equal(t, 2*time.Second, CRTO(0x0006_0004).CRWMT())
	require.Equal(t, 3*time.Second, CRTO(0x0006_0004).CRIMT())
	require.Equal(t, AQA(0x00ff_003f), NewAQA(64, 256))
	require.Equal(t, 64, NewAQA(64, 256).ASQS())
	require.Equal(t, 256, NewAQA(64, 256).ACQS())

	cc := CC(0).WithCSS(CCCSSAll).WithMPS(8192).WithIOSQES(64).WithIOCQES(16).WithSHN(SHNNormal).WithEN(true)
	require.Equal(t, CC(0x0046_40e1), cc)
	require.True(t, cc.EN())
	require.Equal(t, CCCSSAll, cc.CSS())
	require.EqualValues(t, 8192, cc.MPS())
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
	m := NewCMBMSC(0x1234_5000, true)
	require.True(t, m.CRE() && m.CMSE())
	require.EqualValues(t, 0x1234_5000, m.CBA())
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
	c.Encode(b)
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
		c.Encode(back)
		require.Equal(t, b, back)
		require.NotEmpty(t, c.Status.String())
	})
}

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		s    Status
		want string
	}{
		{0, "Successful Completion (sct 0h sc 00h)"},
		{NewStatus(SCTGeneric, 2, true), "Invalid Field in Command (sct 0h sc 02h, DNR)"},
		{NewStatus(SCTCommand, 0, false), "Completion Queue Invalid (sct 1h sc 00h)"},
		{NewStatus(SCTMedia, 0x81, true) | statusMore, "Unrecovered Read Error (sct 2h sc 81h, More, DNR)"},
		{NewStatus(SCTPath, 1, false), "Asymmetric Access Persistent Loss (sct 3h sc 01h)"},
		{NewStatus(SCTVendor, 1, false), "Vendor Specific Status (sct 7h sc 01h)"},
		{NewStatus(SCTGeneric, 0xc1, false), "Vendor Specific Status (sct 0h sc c1h)"},
		{NewStatus(SCTMedia, 0, false), "Reserved Status (sct 2h sc 00h)"},
	} {
		require.Equal(t, tc.want, tc.s.String())
	}
	require.False(t, NewStatus(SCTCommand, 0, false).OK(), "SC 0 of another type is no success")
	require.True(t, Status(statusMore|statusNoTry).OK())
	require.Equal(t, 2, Status(2<<11).CRD())
	require.True(t, NewStatus(SCTMedia, 0x80, true).Is(StatusWriteFault))
}

func TestStatusError(t *testing.T) {
	s := SQE{Opcode: IORead, NSID: 2, CDW10: 0xfffffff0, CDW11: 1, CDW12: 7 | 1<<30}
	require.NoError(t, s.Err(StatusSuccess, false))
	require.EqualError(t, s.Err(StatusReadError, false),
		"nvme: Read of 8 blocks at LBA 8589934576 of namespace 2: Unrecovered Read Error (sct 2h sc 81h)")
	s = SQE{Opcode: AdminCreateSQ}
	require.EqualError(t, s.Err(StatusInvalidQSize, true), "nvme: Create I/O Submission Queue: Invalid Queue Size (sct 1h sc 02h)")
}

func TestIdentifyController(t *testing.T) {
	b := make([]byte, IdentifySize)
	le := binary.LittleEndian
	le.PutUint16(b[0:], 0x1b36)
	copy(b[4:24], "serial\x1b[2J          ")
	copy(b[24:64], "model")
	copy(b[64:72], "1.0     ")
	b[77] = 5
	le.PutUint32(b[80:], 0x20000)
	le.PutUint32(b[88:], 1000)
	le.PutUint16(b[130:], 20)
	le.PutUint16(b[256:], 1<<8)
	b[259], b[512], b[513] = 3, 0x66, 0x44
	le.PutUint32(b[516:], 9)
	le.PutUint16(b[520:], 1<<2|1<<3)
	b[525] = 7
	le.PutUint64(b[280:], 1<<40)
	copy(b[768:], "nqn.2014-08.org.nvmexpress:uuid:x")
	c, err := DecodeIdentifyController(b)
	require.NoError(t, err)
	require.Equal(t, "serial?[2J", c.SN)
	require.Equal(t, "model", c.MN)
	require.Equal(t, "1.0", c.FR)
	require.EqualValues(t, 128<<10, c.MaxTransfer(4096))
	require.True(t, c.OACS.DoorbellBuf() && c.ONCS.DSM() && c.ONCS.WriteZeroes() && !c.ONCS.Compare())
	require.True(t, c.VWC.Present() && c.VWC.FlushAll())
	require.Equal(t, 64, c.SQES.Min())
	require.Equal(t, 16, c.CQES.Max())
	require.EqualValues(t, 9, c.NN)
	require.Equal(t, "1099511627776", c.TNVMCAP.String())
	require.Equal(t, "nqn.2014-08.org.nvmexpress:uuid:x", c.SUBNQN)
	require.Equal(t, 2*time.Second, c.RetryDelay(2))
	require.Zero(t, c.RetryDelay(0)+c.RetryDelay(3))
	b[77] = 0
	c, _ = DecodeIdentifyController(b)
	require.Zero(t, c.MaxTransfer(4096))
	_, err = DecodeIdentifyController(b[:4095])
	require.Error(t, err)
}

// identifyNS makes an Identify Namespace structure with one format.
func identifyNS(blocks uint64, lbads, ms int) []byte {
	b := make([]byte, IdentifySize)
	binary.LittleEndian.PutUint64(b, blocks)
	binary.LittleEndian.PutUint32(b[128:], uint32(lbads)<<16|uint32(ms))
	return b
}

func TestIdentifyNamespace(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    func() []byte
		want string // of Usable
	}{
		{"512", func() []byte { return identifyNS(1000, 9, 0) }, ""},
		{"4096", func() []byte { return identifyNS(1000, 12, 0) }, ""},
		{"inactive", func() []byte { return identifyNS(0, 9, 0) }, "no blocks"},
		{"metadata", func() []byte { return identifyNS(1, 9, 8) }, "8 bytes of metadata per block"},
		{"protection", func() []byte { b := identifyNS(1, 9, 8); b[29] = 2; return b }, "end-to-end protection type 2"},
		{"small", func() []byte { return identifyNS(1, 8, 0) }, "2^8 bytes"},
		{"large", func() []byte { return identifyNS(1, 16, 0) }, "2^16 bytes"},
		{"format", func() []byte { b := identifyNS(1, 9, 0); b[26] = 3; return b }, "LBA format 3 but lists only 1"},
		{"size", func() []byte { return identifyNS(1<<60, 12, 0) }, "cannot be"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := DecodeIdentifyNamespace(tc.b())
			require.NoError(t, err)
			if tc.want == "" {
				require.NoError(t, n.Usable())
				return
			}
			require.ErrorContains(t, n.Usable(), tc.want)
		})
	}
	b := identifyNS(1, 9, 0)
	b[25], b[26] = 20, 0x20|1 // 21 formats, index 17
	binary.LittleEndian.PutUint32(b[128+17*4:], 12<<16)
	n, err := DecodeIdentifyNamespace(b)
	require.NoError(t, err)
	require.Equal(t, 17, n.FormatIndex())
	f, err := n.Format()
	require.NoError(t, err)
	require.EqualValues(t, 4096, f.BlockSize())
	require.True(t, DLFEAT(0b1001).ReadsZero() && DLFEAT(0b1001).WriteZeroesDeallocates())
}

func TestNSList(t *testing.T) {
	b := make([]byte, IdentifySize)
	binary.LittleEndian.PutUint32(b, 1)
	binary.LittleEndian.PutUint32(b[4:], 9)
	ids, err := DecodeNSList(b)
	require.NoError(t, err)
	require.Equal(t, []uint32{1, 9}, ids)
	binary.LittleEndian.PutUint32(b[8:], 9)
	_, err = DecodeNSList(b)
	require.ErrorContains(t, err, "from NSID 9 back to 9")
}

func TestNSDescriptors(t *testing.T) {
	b := make([]byte, IdentifySize)
	at := 0
	put := func(nidt byte, nid ...byte) {
		b[at], b[at+1] = nidt, byte(len(nid))
		copy(b[at+4:], nid)
		at += 4 + len(nid)
	}
	put(1, 1, 2, 3, 4, 5, 6, 7, 8)
	put(0x42, 9, 9)
	put(4, 2)
	d, err := DecodeNSDescriptors(b)
	require.NoError(t, err)
	require.Equal(t, NSDescriptors{EUI64: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, CSI: CSIZoned}, d)
	put(3, 1, 2)
	_, err = DecodeNSDescriptors(b)
	require.ErrorContains(t, err, "type 3 has length 2, want 16")
}

func TestLogs(t *testing.T) {
	b := make([]byte, 2*ErrorEntrySize)
	le := binary.LittleEndian
	le.PutUint64(b, 5)
	le.PutUint16(b[8:], 1)
	le.PutUint16(b[10:], 2)
	le.PutUint16(b[12:], uint16(NewStatus(SCTMedia, 0x81, false))<<1|1)
	le.PutUint64(b[16:], 77)
	le.PutUint32(b[24:], 1)
	list, err := DecodeErrorLog(b)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "error 5: queue 1 command 2 namespace 1 LBA 77: Unrecovered Read Error (sct 2h sc 81h)", list[0].String())
	_, err = DecodeErrorLog(b[:65])
	require.Error(t, err)

	b = make([]byte, SMARTSize)
	b[0] = 0b1001
	le.PutUint16(b[1:], 300)
	le.PutUint64(b[80:], 12345)
	s, err := DecodeSMART(b)
	require.NoError(t, err)
	require.Equal(t, []string{"spare capacity below its threshold", "media is read-only"}, s.Warning.Words())
	require.EqualValues(t, 300, s.Temperature)
	require.Equal(t, "12345", s.HostWrites.String())
}

func TestAsyncEvent(t *testing.T) {
	e := AsyncEvent(0x00_01_00_00 | 1<<8)
	require.Equal(t, AsyncError, e.Type())
	require.Equal(t, LIDError, e.LID())
	require.Equal(t, "invalid doorbell value written", e.String())
	require.Equal(t, "type 7 information 0x09", AsyncEvent(7|9<<8).String())
}

// FuzzIdentify: no structure from a controller crashes a decoder or makes it believe a length.
func FuzzIdentify(f *testing.F) {
	f.Add([]byte{1, 8, 0, 0, 1, 2, 3})
	f.Add(identifyNS(1, 9, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		page := make([]byte, IdentifySize)
		copy(page, b)
		c, err := DecodeIdentifyController(page)
		require.NoError(t, err)
		require.GreaterOrEqual(t, c.MaxTransfer(4096), int64(0))
		n, err := DecodeIdentifyNamespace(page)
		require.NoError(t, err)
		if n.Usable() == nil {
			lf, err := n.Format()
			require.NoError(t, err)
			require.Zero(t, lf.MS())
			require.Positive(t, int64(n.NSZE)*lf.BlockSize())
		}
		_, _ = DecodeNSDescriptors(page)
		if ids, err := DecodeNSList(page); err == nil {
			require.LessOrEqual(t, len(ids), IdentifySize/4)
		}
		_, err = DecodeErrorLog(page)
		require.NoError(t, err)
		_, err = DecodeSMART(page[:SMARTSize])
		require.NoError(t, err)
		_, err = DecodeNVMController(page)
		require.NoError(t, err)
	})
}
