package share

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/share/wire"
)

// TestSpan: a map is of bytes that the file has, or, to be filled, of any number but none; without a length it goes to the file's end, also of one that grows.
func TestSpan(t *testing.T) {
	const size = 1000
	empty := wire.MapPrivate | wire.MapEmpty
	for _, c := range []struct {
		q     wire.Map
		off   int64
		n     int64 // 0: refused
		toEnd bool
	}{
		{wire.Map{}, 0, size, true}, {wire.Map{Off: 1}, 1, size - 1, true}, {wire.Map{Off: size - 1}, size - 1, 1, true},
		{wire.Map{Off: size}, 0, 0, false}, {wire.Map{Off: size + 1}, 0, 0, false},
		{wire.Map{Len: size}, 0, size, false}, {wire.Map{Len: size + 1}, 0, 0, false}, {wire.Map{Off: 1, Len: size}, 0, 0, false}, {wire.Map{Off: 1, Len: size - 1}, 1, size - 1, false},
		{wire.Map{Off: 999, Len: 1, Flags: wire.MapPrivate}, 999, 1, false},
		{wire.Map{Len: 5 * size, Flags: empty}, 0, 5 * size, false}, {wire.Map{Flags: empty}, 0, 0, false},
		{wire.Map{Off: math.MaxInt64/4 + 1}, 0, 0, false}, {wire.Map{Off: math.MaxUint64}, 0, 0, false}, {wire.Map{Off: math.MaxUint64 - 9, Len: 20}, 0, 0, false},
		{wire.Map{Len: math.MaxInt64}, 0, 0, false}, {wire.Map{Off: 1, Len: math.MaxUint64}, 0, 0, false}, {wire.Map{Off: math.MaxInt64, Len: math.MaxInt64}, 0, 0, false},
		{wire.Map{Len: math.MaxInt64/4 + 1, Flags: empty}, 0, 0, false}, {wire.Map{Len: math.MaxUint64, Flags: empty}, 0, 0, false},
		{wire.Map{Off: math.MaxUint64, Len: 1, Flags: empty}, 0, 0, false},
	} {
		off, n, toEnd, err := span(&c.q, size)
		if c.n == 0 {
			require.ErrorIs(t, err, unix.EINVAL, c.q)
			continue
		}
		require.NoError(t, err, c.q)
		require.Equal(t, []int64{c.off, c.n}, []int64{off, n}, c.q)
		require.Equal(t, c.toEnd, toEnd, c.q)
	}
	_, _, _, err := span(&wire.Map{}, 0)
	require.ErrorIs(t, err, unix.EINVAL, "an empty file has no bytes")
}

// TestRaise: of generations of a mapping's range the newest stays on the notice board, in whatever order they come.
func TestRaise(t *testing.T) {
	board, err := wire.NewShared("lanefs-notices", 8*wire.Slots, true)
	require.NoError(t, err)
	defer board.Close()
	c := &conn{board: board}
	for _, g := range [][2]uint64{{7, 7}, {5, 7}, {9, 9}, {9, 9}, {8, 9}, {1, 9}} {
		c.raise(3, g[0])
		require.Equal(t, g[1], c.word(3).Load())
	}
	require.Zero(t, c.word(2).Load()+c.word(4).Load())
}
