package copyengine

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	cpu "github.com/lanefs/lanefs/gpu/host"
)

// More copies than streams: each arrives, and the streams are all given back.
func TestPool(t *testing.T) {
	rt, err := cpu.Open(cpu.Options{})
	require.NoError(t, err)
	const n = 4096
	m, err := rt.Alloc(gpu.HostMapped, 2*n*4*poolStreams)
	require.NoError(t, err)
	var p Pool
	var all sync.WaitGroup
	half := m.Size() / 2
	for i := range int64(4 * poolStreams) {
		copy(m.Host()[i*n:], bytes.Repeat([]byte{byte(i + 1)}, n))
		all.Go(func() {
			if err := p.Copy(rt, m.Addr()+gpu.Addr(half+i*n), m.Addr()+gpu.Addr(i*n), n); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.True(t, bytes.Equal(m.Host()[:half], m.Host()[half:]))
	require.LessOrEqual(t, p.made, poolStreams)
	require.Len(t, p.idle, p.made)
	require.Error(t, p.Copy(rt, m.Addr(), 0, n), "an address that is not memory")
	require.NoError(t, p.Close())
	require.NoError(t, m.Close())
	require.NoError(t, rt.Close(), "the runtime finds leaks")
}
