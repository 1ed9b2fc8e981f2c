package copyengine

import (
	"bytes"
	"errors"
	"runtime"
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

// stacks is what all goroutines do.
func stacks() []byte {
	b := make([]byte, 1<<20)
	return b[:runtime.Stack(b, true)]
}

// scarce is a runtime that makes so many streams.
type scarce struct {
	gpu.Runtime
	left int
}

var errScarce = errors.New("no more streams")

func (s *scarce) NewStream() (gpu.Stream, error) {
	if s.left == 0 {
		return nil, errScarce
	}
	s.left--
	return s.Runtime.NewStream()
}

// Where there is no stream for a copy it waits for one that another copy has, and else is not begun, which is not for good.
func TestPoolScarce(t *testing.T) {
	rt, err := cpu.Open(cpu.Options{})
	require.NoError(t, err)
	m, err := rt.Alloc(gpu.HostMapped, 4096)
	require.NoError(t, err)
	s := &scarce{Runtime: rt}
	var p Pool
	copies := func() error { return p.Copy(s, m.Addr()+8, m.Addr(), 8) }
	for range poolStreams + 1 {
		err := copies()
		require.ErrorIs(t, err, errScarce)
		require.ErrorIs(t, err, gpu.ErrNotBegun)
	}
	for _, most := range []int{1, poolStreams} {
		s.left = most - p.made
		if most == poolStreams {
			s.left = 100
		}
		t.Run("", func(t *testing.T) {
			var mine []*poolStream
			for range most {
				stream, err := p.take(s)
				require.NoError(t, err)
				mine = append(mine, stream)
			}
			all := make(chan error, 2)
			for range 2 {
				go func() { all <- copies() }()
			}
			for waits := 0; waits < 2; waits = bytes.Count(stacks(), []byte("copyengine.(*Pool).take(")) {
				require.Empty(t, all, "all streams are others'")
			}
			require.Empty(t, all, "all streams are others'")
			p.give(mine[0])
			require.NoError(t, <-all)
			require.NoError(t, <-all)
			for _, stream := range mine[1:] {
				p.give(stream)
			}
			require.Equal(t, most, p.made)
		})
	}
	err = p.Copy(s, m.Addr(), 0, 8)
	require.Error(t, err)
	require.NotErrorIs(t, err, gpu.ErrNotBegun)
	require.NoError(t, p.Close())
	require.NoError(t, m.Close())
	require.NoError(t, rt.Close(), "the runtime finds leaks")
}
