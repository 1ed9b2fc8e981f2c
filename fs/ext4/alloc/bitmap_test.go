package alloc

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// refBits is the same operations on a slice of bool.
type refBits []bool

func (b refBits) next(i, end uint32, want bool) uint32 {
	for ; i < end; i++ {
		if b[i] == want {
			return i
		}
	}
	return end
}

func (b refBits) longest(n uint32) (best uint32) {
	run := uint32(0)
	for _, set := range b[:n] {
		if run++; set {
			run = 0
		}
		best = max(best, run)
	}
	return best
}

func (b refBits) runBefore(i uint32) uint32 {
	for i > 0 && !b[i-1] {
		i--
	}
	return i
}

func TestBitmapAgainstBools(t *testing.T) {
	const n = 512
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		b, ref := make([]byte, n/8), make(refBits, n)
		for range 400 {
			from := r.Uint32N(n + 1)
			to := min(from+r.Uint32N(1+r.Uint32N(200)), n)
			set := r.IntN(2) == 0
			if set {
				setBits(b, from, to)
			} else {
				clearBits(b, from, to)
			}
			for i := from; i < to; i++ {
				ref[i] = set
			}
			i, end := r.Uint32N(n+1), r.Uint32N(n+1)
			i = min(i, end)
			require.Equal(t, ref.next(i, end, false), nextClear(b, i, end))
			require.Equal(t, ref.next(i, end, true), nextSet(b, i, end))
			require.Equal(t, ref.runBefore(i), runBefore(b, i))
			require.Equal(t, ref.longest(end), longestRun(b, end))
			free := uint32(0)
			for _, set := range ref[:end] {
				if !set {
					free++
				}
			}
			require.Equal(t, free, countClear(b, end))
			checkFindRun(t, r, b, ref, end)
		}
	}
}

func checkFindRun(t *testing.T, r *rand.Rand, b []byte, ref refBits, n uint32) {
	want, start := 1+r.Uint32N(40), r.Uint32N(n+1)
	align := uint32(1) << r.IntN(4)
	base := r.Uint64N(1000)
	got, exact := findRun(b, n, start, want, base, align)
	require.LessOrEqual(t, got.off+got.n, n)
	for i := got.off; i < got.off+got.n; i++ {
		require.False(t, ref[i])
	}
	longest := ref.longest(n)
	if longest >= want {
		require.GreaterOrEqual(t, got.n, want)
		return
	}
	require.True(t, exact)
	require.Equal(t, longest, got.n)
}

func TestFindRunAligns(t *testing.T) {
	b := make([]byte, 64)
	setBits(b, 0, 3)
	got, _ := findRun(b, 512, 0, 64, 0, 64)
	require.Equal(t, run{64, 448}, got)
	got, _ = findRun(b, 512, 0, 64, 1, 64) // the group begins at block 1
	require.Equal(t, run{63, 449}, got)
	setBits(b, 100, 512)
	got, _ = findRun(b, 512, 0, 64, 0, 64) // no aligned place is long enough
	require.Equal(t, run{3, 97}, got)
}
