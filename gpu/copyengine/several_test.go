package copyengine

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
)

// of is memory of a device with a name.
type of struct {
	gpu.Memory
	device string
}

func (m of) Reach() gpu.Reach { return gpu.Reach{Owner: gpu.OwnerDevice, Device: m.device} }

// Batches with copies of two devices, more than there are streams, in either order: none waits for what another one has that waits for it.
func TestSeveralAtOnce(t *testing.T) {
	const size = 8 << 20
	s := &Several{of: map[string]*Engine{}}
	mem := map[string]gpu.Memory{}
	rt, err := detached.New(false) // one, which has the stage
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	for _, name := range []string{"a", "b"} {
		e, err := New(rt)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		m, err := rt.Alloc(gpu.DevicePlain, size)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		s.of[name], mem[name] = e, of{m, name}
	}
	s.first = s.of["a"]
	stage, err := s.of["a"].Stage(size)
	require.NoError(t, err)
	s.of["b"].beside = []*Engine{s.of["a"]}
	var all sync.WaitGroup
	for i := range 3 * streams {
		all.Go(func() {
			names := []string{"a", "b"}
			if i%2 == 1 {
				names = []string{"b", "a"}
			}
			for range 20 {
				p, err := s.Pipe()
				if err != nil {
					t.Error(err)
					return
				}
				for _, name := range append(names, names...) {
					n := gatherLarge << rand.IntN(6) // up to 8 MiB
					if err := p.Write(mem[name], 0, stage[:n]); err != nil {
						t.Error(err)
					}
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, e := range s.of {
		require.Len(t, e.idle, streams)
		require.Empty(t, e.turns)
	}
}
