package media

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/nvmeq/internal/fill"
)

func random(seed uint64, b []byte) []byte {
	fill.Fill(b, seed)
	return b
}

// A system call may move any number of bytes. All of them are moved, once, and the runs stay as they were for the next use.
func TestBuffersInParts(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 0))
	var b Buffers
	for range 50 {
		b.Reset()
		var want []byte
		for range 1 + r.IntN(2*iovMax) {
			p := random(r.Uint64(), make([]byte, 8*(1+r.IntN(4))))
			b.Add(p)
			want = append(want, p...)
		}
		require.EqualValues(t, len(want), b.n)
		for range 2 {
			var got []byte
			require.NoError(t, b.each(512, func(iov []unix.Iovec, off int64) (n int64, err error) {
				require.LessOrEqual(t, len(iov), iovMax)
				require.EqualValues(t, 512+len(got), off)
				for all := 1 + r.IntN(40*iovMax); len(iov) > 0 && all > 0; iov = iov[1:] {
					p := bytesOf(iov[0])
					p = p[:min(len(p), all)]
					got = append(got, p...)
					all -= len(p)
					n += int64(len(p))
				}
				return n, nil
			}))
			require.True(t, bytes.Equal(want, got))
		}
		got := make([]byte, len(want))
		b.gather(got)
		require.True(t, bytes.Equal(want, got))
	}
	require.ErrorIs(t, b.each(0, func([]unix.Iovec, int64) (int64, error) { return 0, nil }), errShort)
}
