package copyengine

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Pieces of any size at any place arrive, small ones by few launches, whoever allocated them, and nothing beside them is written.
func TestWriteAll(t *testing.T) {
	r := newRig(t)
	rng := rand.New(rand.NewPCG(1, 2))
	size := int(r.dev.Size())
	want := make([]byte, size)
	require.NoError(t, r.e.Write(r.dev, 0, want))
	for range 5 {
		var at []int64
		var from [][]byte
		for off := rng.IntN(100); ; {
			n := 1 + rng.IntN(3000)
			if rng.IntN(40) == 0 {
				n = 200<<10 + rng.IntN(200<<10)
			}
			if off+n > size {
				break
			}
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			copy(want[off:], b)
			at, from = append(at, int64(off)), append(from, b)
			off += n + rng.IntN(2000)
		}
		launches := r.e.Counters().Launches
		require.NoError(t, r.e.WriteAll(r.dev, at, from))
		require.Less(t, r.e.Counters().Launches-launches, uint64(len(at)/10+3))
		got := make([]byte, size)
		require.NoError(t, r.e.Read(got, r.dev, 0))
		require.Equal(t, want, got)
	}
	require.Error(t, r.e.WriteAll(r.dev, []int64{0, int64(size) - 1}, [][]byte{{1}, {1, 2}}), "beyond the end")
	r.rt.Lose()
	require.ErrorContains(t, r.e.WriteAll(r.dev, []int64{0, 8}, [][]byte{{1}, {2}}), "the device is lost")
}
