package blockdev

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestMemoryTakenAgain(t *testing.T) {
	const n = 3<<16 + 5
	want := bytes.Repeat([]byte{0xdb}, n)
	a, b := TestMemory(n), TestMemory(n)
	require.True(t, bytes.Equal(want, a))
	require.Zero(t, uintptr(unsafe.Pointer(&a[0]))%pageSize)
	first := &a[0]
	clear(a)
	clear(b)
	ReleaseTestMemory(a)
	require.True(t, bytes.Equal(want, a), "overwritten")
	ReleaseTestMemory(b)
	again := TestMemory(n)
	require.Same(t, first, &again[0], "what was given back first comes first")
	require.True(t, bytes.Equal(want, again))

	b[n-1] = 0
	require.PanicsWithValue(t, "blockdev: a buffer was written after its release", func() { TestMemory(n) })
}

// TestMemoryKeepsLittle: a size that is not taken any more does not fill the memory.
func TestMemoryKeepsLittle(t *testing.T) {
	for range 3 * mostTestMemory >> 21 {
		ReleaseTestMemory(make([]byte, 1<<20))
	}
	require.LessOrEqual(t, testMemory.held, mostTestMemory)
	require.Empty(t, TestMemory(0))
}
