package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestTrace: lanes that trace note the steps of each command, also when their rings have gone round several times, and the steps are not
// longer together than the command. The controller takes a millisecond, which is in Wait and nowhere else.
func TestTrace(t *testing.T) {
	const slow = time.Millisecond
	r := newRig(t, softctl.Options{Latency: slow}, engine.Config{Lanes: 2, Depth: 8, Trace: true})
	c := r.Chunk(t, 8*r.Block)
	const rounds, each = 10, 7
	var reaps time.Duration
	waits := 0
	for range rounds {
		cmds := make([]engine.Command, each)
		for i := range cmds {
			cmds[i] = r.RW(nvme.IORead, uint64(i), c, int64(i)*r.Block, r.Block)
			cmds[i].Steps = new(engine.Steps)
		}
		began := time.Now()
		require.NoError(t, r.Engine.Do(1, cmds))
		whole := time.Since(began)
		for i := range cmds {
			s := *cmds[i].Steps
			require.NotZero(t, s.Build, "%+v", s)
			reaps += s.Reap // a reap may be shorter than a tick
			if s.Wait > slow/2 {
				waits++
			}
			require.Less(t, s.Build+s.Post+s.Ring+s.Wait+s.Reap, whole+whole/8, "%+v in %v", s, whole)
		}
	}
	require.NotZero(t, reaps)
	require.Greater(t, waits, rounds*each/2, "but where the lane was kept from running just before it waits")
	plain := newRig(t, softctl.Options{}, engine.Config{Lanes: 1})
	cmd := plain.RW(nvme.IORead, 0, plain.Chunk(t, plain.Block), 0, plain.Block)
	cmd.Steps = &engine.Steps{Wait: 1}
	require.NoError(t, plain.Engine.Do(0, []engine.Command{cmd}))
	require.Zero(t, *cmd.Steps, "lanes that do not trace say nothing")
}
