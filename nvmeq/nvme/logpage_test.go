package nvme

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

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

func FuzzErrorLog(f *testing.F) {
	f.Add(make([]byte, ErrorEntrySize))
	f.Add(bytes.Repeat([]byte{1}, 3*ErrorEntrySize))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := DecodeErrorLog(b)
		if err != nil {
			require.NotZero(t, len(b)%ErrorEntrySize)
			return
		}
		require.LessOrEqual(t, len(list), len(b)/ErrorEntrySize)
		for _, e := range list {
			require.NotZero(t, e.Count)
			require.NotEmpty(t, e.String())
		}
	})
}

func FuzzSMART(f *testing.F) {
	f.Add(make([]byte, SMARTSize))
	f.Add(bytes.Repeat([]byte{0xff}, SMARTSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSMART(b)
		if err != nil {
			require.NotEqual(t, SMARTSize, len(b))
			return
		}
		require.GreaterOrEqual(t, s.UnsafeShutdowns.Sign(), 0)
		require.Equal(t, s.Warning&0x3f == 0, len(s.Warning.Words()) == 0)
	})
}

func FuzzAsyncEvent(f *testing.F) {
	f.Add(uint32(0x00_01_01_00))
	f.Fuzz(func(t *testing.T, v uint32) {
		require.NotEmpty(t, AsyncEvent(v).String())
		require.Positive(t, NumQueues(v).SQs()*NumQueues(v).CQs())
	})
}
