package engine_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
)

// TestHoldBesideLaunches has lanes held for their counters all the time, while launches end and begin: no lane is lost over it, and the
// counters are those of commands that have ended.
func TestHoldBesideLaunches(t *testing.T) {
	dev, r := newDetached(t, 3)
	e := r.Engine
	data := r.Chunk(t, 4096)
	var over atomic.Bool
	var sent atomic.Uint64
	var others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for !over.Load() {
				before, ended := sent.Load(), uint64(0)
				for _, s := range e.Stats() {
					ended += s.Completions
				}
				if ended < before {
					t.Errorf("the lanes count %d completions after %d", ended, before)
					return
				}
			}
		})
	}
	for round := range 8 {
		for i := range 20 {
			require.NoError(t, e.Do((round+i)%3, []engine.Command{r.RW(nvme.IORead, 0, data, 0, 512)}))
			sent.Add(1)
		}
		until(t, "parking", func() bool { return dev.Running() == 0 })
	}
	over.Store(true)
	others.Wait()
	require.NoError(t, e.Close())
}

// TestHoldThroughLaunch has a lane held while a launch begins, serves another lane and ends: the lane is dozing in no launch, and the next
// command launches it.
func TestHoldThroughLaunch(t *testing.T) {
	dev, r := newDetached(t, 2)
	e := r.Engine
	data := r.Chunk(t, 4096)
	do := func(lane int) {
		t.Helper()
		require.NoError(t, e.Do(lane, []engine.Command{r.RW(nvme.IORead, 0, data, 0, 512)}))
	}
	for range 3 {
		do(0)
		until(t, "parking", func() bool { return dev.Running() == 0 })
		giveBack, err := e.HoldLane(0)
		require.NoError(t, err)
		launches := dev.Launches()
		do(1)
		require.Greater(t, dev.Launches(), launches)
		until(t, "parking", func() bool { return dev.Running() == 0 })
		giveBack()
		do(0)
	}
	require.NoError(t, r.Controller.Err())
	require.Nil(t, r.Controller.Failover())
	require.NoError(t, e.Close())
}
