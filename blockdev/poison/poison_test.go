package poison

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestTakenAgain(t *testing.T) {
	const n = 3*len16 + 5
	want := bytes.Repeat([]byte{0xdb}, n)
	a, b := Take(n), Take(n)
	require.True(t, bytes.Equal(want, a))
	require.Zero(t, uintptr(unsafe.Pointer(&a[0]))%align)
	first := &a[0]
	clear(a)
	clear(b)
	Give(a)
	require.True(t, bytes.Equal(want, a), "overwritten")
	Give(b)
	again := Take(n)
	require.Same(t, first, &again[0], "what was given back first comes first")
	require.True(t, bytes.Equal(want, again))

	b[n-1] = 0
	require.PanicsWithValue(t, "blockdev: a buffer was written after its release", func() { Take(n) })
}

const len16 = 64 << 10

// TestKeepsLittle: a size that is not taken any more does not fill the memory.
func TestKeepsLittle(t *testing.T) {
	for range 100 {
		Give(make([]byte, 1<<20))
	}
	require.LessOrEqual(t, held, most)
	require.Empty(t, Take(0))
}
