package nvme

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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

// structures are seeds of fuzzers of Identify data.
func structures(f *testing.F) {
	f.Add([]byte{1, 8, 0, 0, 1, 2, 3})
	f.Add(identifyNS(1, 9, 0))
	f.Add(make([]byte, IdentifySize))
	f.Add(bytes.Repeat([]byte{0xff}, IdentifySize))
}

// page is a structure that begins with b.
func page(b []byte) []byte {
	p := make([]byte, IdentifySize)
	copy(p, b)
	return p
}

// wrongSize has decode refuse b, unless it has the size of a structure.
func wrongSize[T any](t *testing.T, b []byte, decode func([]byte) (T, error)) {
	t.Helper()
	if len(b) != IdentifySize {
		_, err := decode(b)
		require.Error(t, err)
	}
}

func FuzzIdentifyController(f *testing.F) {
	structures(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		wrongSize(t, b, DecodeIdentifyController)
		c, err := DecodeIdentifyController(page(b))
		require.NoError(t, err)
		require.GreaterOrEqual(t, c.MaxTransfer(4096), int64(0))
		require.True(t, c.SQES.Min() > 0 && c.CQES.Max() > 0)
		require.GreaterOrEqual(t, c.TNVMCAP.Sign(), 0)
		for crd := range 4 {
			require.GreaterOrEqual(t, c.RetryDelay(crd), time.Duration(0))
		}
		for _, s := range []string{c.SN, c.MN, c.FR, c.SUBNQN} {
			require.Regexp(t, "^[ -~]*$", s, "what is printed cannot drive a terminal")
		}
	})
}

func FuzzIdentifyNamespace(f *testing.F) {
	structures(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		wrongSize(t, b, DecodeIdentifyNamespace)
		n, err := DecodeIdentifyNamespace(page(b))
		require.NoError(t, err)
		require.LessOrEqual(t, len(n.Formats), 64)
		for _, lf := range n.Formats {
			require.GreaterOrEqual(t, lf.BlockSize(), int64(0))
		}
		if n.Usable() == nil {
			lf, err := n.Format()
			require.NoError(t, err)
			require.Zero(t, lf.MS())
			require.Positive(t, int64(n.NSZE)*lf.BlockSize())
		}
	})
}

func FuzzNVMController(f *testing.F) {
	structures(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		wrongSize(t, b, DecodeNVMController)
		_, err := DecodeNVMController(page(b))
		require.NoError(t, err)
	})
}

// FuzzNSList: a list that is accepted ascends, so that a walk over lists ends.
func FuzzNSList(f *testing.F) {
	structures(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		wrongSize(t, b, DecodeNSList)
		ids, err := DecodeNSList(page(b))
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(ids), IdentifySize/4)
		last := uint32(0)
		for _, id := range ids {
			require.Greater(t, id, last)
			last = id
		}
	})
}

func FuzzNSDescriptors(f *testing.F) {
	structures(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		wrongSize(t, b, DecodeNSDescriptors)
		if d, err := DecodeNSDescriptors(page(b)); err == nil {
			require.NotEmpty(t, d.CSI.String())
		}
	})
}
