package residency

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

// counted is a runtime that counts what of its memory is freed.
type counted struct {
	gpu.Runtime
	freed atomic.Int64
	had   []gpu.Memory
}

func (c *counted) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	m, err := c.Runtime.Alloc(kind, size)
	if err != nil {
		return nil, err
	}
	c.had = append(c.had, m)
	return countedMemory{m, c}, nil
}

type countedMemory struct {
	gpu.Memory
	c *counted
}

func (m countedMemory) Close() error { m.c.freed.Add(1); return m.Memory.Close() }

// TestFailedRuntime: once the runtime has failed nothing of it is freed, neither ranges, a program's memory, nor the stage: the call may not return. The controller lets go
// of all the same, and what another runtime has is freed.
func TestFailedRuntime(t *testing.T) {
	for _, failed := range []bool{false, true} {
		gpuRT, err := host.Open(host.Options{})
		require.NoError(t, err)
		hostRT, err := host.Open(host.Options{})
		require.NoError(t, err)
		rt, a := &counted{Runtime: gpuRT}, &pinnedOnly{pages: true}
		var is atomic.Bool
		p, err := New(Config{Runtime: rt, Host: hostRT, Mapper: a, Copier: &cpu{rt: gpuRT}, Size: 8 * gpuRT.Facts().Granularity, Failed: is.Load})
		require.NoError(t, err)
		before := rt.freed.Load() // what New tried
		idle, err := p.Map(want(1, 100, func(*Memory) error { return nil }))
		require.NoError(t, err)
		idle.Release()
		held, err := p.Alloc(100, nil, nil)
		require.NoError(t, err)
		part, err := held.Memory().Part(nil, nil)
		require.NoError(t, err)
		part.Give()
		e, err := held.Export(nil)
		require.NoError(t, err)
		theirs, err := p.Import(e, nil)
		require.NoError(t, err)
		is.Store(failed)
		require.NoError(t, theirs.Close())
		held.Release()
		require.NoError(t, p.Close())
		require.Zero(t, p.Stats().Used)
		require.Zero(t, a.live.Load(), "all is detached from the controller")
		require.NoError(t, hostRT.Close(), "the runtime finds leaks")
		if !failed {
			require.Equal(t, before+3, rt.freed.Load())
			require.NoError(t, gpuRT.Close())
			continue
		}
		require.Equal(t, before, rt.freed.Load())
		for _, m := range rt.had[len(rt.had)-3:] {
			require.NoError(t, m.Close())
		}
		require.NoError(t, gpuRT.Close())
	}
}
