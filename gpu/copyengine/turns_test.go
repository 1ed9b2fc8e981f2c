package copyengine

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
)

// Many batches with large copies all have their turn, each once, and not more than a few at the same time; small pieces need none.
func TestTurns(t *testing.T) {
	const size = 4 << 20
	rt, err := detached.New(false)
	require.NoError(t, err)
	defer rt.Close()
	e, err := New(rt)
	require.NoError(t, err)
	defer e.Close()
	m, err := rt.Alloc(gpu.DevicePlain, size)
	require.NoError(t, err)
	defer m.Close()
	stage, err := e.Stage(size)
	require.NoError(t, err)
	for range turnsAtOnce { // all that there are
		e.turns.begin(nil)
	}
	p, err := e.Pipe()
	require.NoError(t, err)
	require.NoError(t, p.Write(m, 0, stage[:gatherLarge-1]))
	require.NoError(t, p.Close())
	var all sync.WaitGroup
	var done atomic.Int64
	for i := range 2 * streams {
		all.Go(func() {
			p, err := e.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			for k := range 3 {
				if err := p.Write(m, 0, stage[:gatherLarge<<(i%3)]); err != nil {
					t.Error(err)
				}
				if k == 1 {
					if err := p.Wait(); err != nil {
						t.Error(err)
					}
				}
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			done.Add(1)
		})
	}
	require.Zero(t, done.Load())
	for range turnsAtOnce {
		e.turns.end()
	}
	all.Wait()
	require.Empty(t, e.turns)
}
