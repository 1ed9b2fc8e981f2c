package namespace

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/latency"
)

// Of long calls that follow one another, one every 8 ms yields to Go's scheduler.
func TestYields(t *testing.T) {
	n := 0
	gosched = func() { n++ }
	t.Cleanup(func() { gosched = runtime.Gosched })
	layer := latency.NewLayer("test", "read")
	var y yields
	y.ended(yieldLeast, &latency.Clock{})
	require.Zero(t, n, "no clock was read")
	calls, begin := 0, time.Now()
	for n < 4 {
		var c latency.Clock
		layer.StartBy(&c, 0).EndBy(&c)
		y.ended(yieldLeast, &c)
		calls++
	}
	require.GreaterOrEqual(t, time.Since(begin), 3*yieldEvery)
	require.Greater(t, calls, n)

	d, _ := testNamespace(t, limits{transfer: 1024}, blockdev.Info{})
	b, err := d.Alloc(yieldLeast)
	require.NoError(t, err)
	defer b.Release()
	for _, tc := range []struct {
		inline bool
		n      int
		yields bool
	}{{false, yieldLeast, false}, {true, 512, false}, {true, yieldLeast, true}} {
		d.inline = tc.inline
		time.Sleep(yieldEvery)
		require.NoError(t, d.Read(0, b.Slice(0, tc.n)))
		require.Equal(t, tc.yields, d.yields.last.Load() > 0)
	}
}
