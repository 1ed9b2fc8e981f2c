package share

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/residency"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// someReached is a Mapper that reaches memory of one size only.
type someReached struct{ size int64 }

func (s someReached) Attach(m gpu.Memory) (blockdev.Buffer, error) {
	if m.Size() != s.size {
		return nil, errors.New("out of reach")
	}
	return released{}, nil
}

type released struct{ blockdev.Buffer }

func (released) Release() {}

// Copy is never called here.
func (s someReached) Copy(_, _ gpu.Addr, _ int64) error { return errors.ErrUnsupported }

// TestPlace: whatever transfers are of, parts have each byte of those that pass through the stage once, in their order, where DMA can take it to; and nothing of others.
func TestPlace(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	granule := rt.Facts().Granularity
	// Which memory the controller reaches is known of each, since the pool's first one is reached.
	pool, err := residency.New(residency.Config{Runtime: rt, Mapper: someReached{granule}, Copier: someReached{}, Size: 8 * granule})
	require.NoError(t, err)
	var holds []*residency.Hold
	memory := func(n int64) *residency.Memory {
		h, err := pool.Alloc(n, nil, nil)
		require.NoError(t, err)
		holds = append(holds, h)
		return h.Memory()
	}
	near, far := memory(granule), memory(2*granule)
	require.Equal(t, []bool{false, true}, []bool{near.Staged(), far.Staged()})

	const size = residency.PartSize
	rng := rand.New(rand.NewPCG(7, 8))
	sizes := []int{0, 1, 3, 64, 511, 4096, 70_001, 1 << 20, size / 2, size/2 + 1, size - 1, size, size + 1, 2*size - 3, 3*size + 5, 4*size + 63}
	for round := range 2000 {
		ts := make([]ext4.Transfer, 1+rng.IntN(6)*rng.IntN(6))
		for i := range ts {
			ts[i] = ext4.Transfer{Off: rng.Int64N(1 << 40), N: sizes[rng.IntN(len(sizes))], Mem: far}
			if rng.IntN(5) == 0 {
				ts[i].Mem = near
			}
		}
		if round < len(sizes)*len(sizes) { // each after each
			ts = []ext4.Transfer{{Off: 1, N: sizes[round%len(sizes)], Mem: far}, {Off: 7, N: sizes[round/len(sizes)], Mem: far}}
		}
		next, done := 0, 0 // the byte that comes next
		skip := func() {
			for next < len(ts) && (done == ts[next].N || ts[next].Mem == near) {
				next, done = next+1, 0
			}
		}
		skip()
		for of, at := 0, 0; of < len(ts); {
			var pieces []staged
			was, wasAt := of, at
			pieces, of, at = place(ts, of, at)
			require.True(t, of > was || at > wasAt, "it goes on")
			end := 0
			for _, p := range pieces {
				require.Equal(t, []int{next, done}, []int{p.of, p.done})
				require.Equal(t, ts[p.of].Off+int64(p.done), p.off)
				require.True(t, p.n > 0 && p.at >= end && p.at+p.n <= size, "%+v", p)
				require.EqualValues(t, p.off&3, p.at&3)
				end, done = p.at+p.n, done+p.n
				skip()
			}
		}
		require.Equal(t, len(ts), next, "all is placed")
	}
	for _, h := range holds {
		h.Release()
	}
	require.NoError(t, pool.Close())
	require.NoError(t, rt.Close())
}
