package rocm_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/smaps"
)

// Pinned memory of the pool's size can consist of huge pages: it begins at one, and asks for them.
func TestHugePages(t *testing.T) {
	rt := device(t)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	for _, n := range []int64{2 << 20, 6<<20 + 4096} {
		m, err := rt.Alloc(gpu.HostPinned, n)
		require.NoError(t, err)
		at := uintptr(unsafe.Pointer(&m.Host()[0]))
		require.Zero(t, at%(2<<20))
		require.Contains(t, smaps.At(t, at).Flags(), "hg")
		require.NoError(t, m.Close())
	}
}
