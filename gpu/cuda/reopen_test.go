package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// A runtime can be closed, context and all, and opened again in the same process.
func TestReopen(t *testing.T) {
	for round := range 4 {
		r := device(t)
		image, err := kernels.Image(r.Facts().Arch)
		require.NoError(t, err)
		m, err := r.Load(image)
		require.NoError(t, err)
		f, err := m.Function(kernels.WritePatternKernel)
		require.NoError(t, err)
		host, err := r.Alloc(gpu.HostMapped, 1<<20)
		require.NoError(t, err)
		dev, err := r.Alloc(gpu.DeviceFine, 1<<20)
		require.NoError(t, err)
		var streams []gpu.Stream
		one := gpu.Dim3{X: 1, Y: 1, Z: 1}
		for range 20 {
			s, err := r.NewStream()
			require.NoError(t, err)
			require.NoError(t, s.Launch(f, one, one, uint64(dev.Addr()), 1<<10, uint64(round)))
			streams = append(streams, s)
		}
		for _, s := range streams {
			require.NoError(t, s.Wait(time.Minute))
			require.NoError(t, s.Close())
		}
		require.NoError(t, host.Close())
		require.NoError(t, dev.Close())
		require.NoError(t, m.Close())
		require.NoError(t, r.Close())
	}
}
