package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// TestStoppedProcess: a process that was stopped for long, while a lane was to answer, does not take the lane for one that hangs when it goes on; one that does not answer then is one.
func TestStoppedProcess(t *testing.T) {
	f := newFailing(t, true, false, softctl.Options{}, engine.Config{Lanes: 1, Timeout: 3 * time.Second, HangTimeout: time.Second})
	c := f.Chunk(t, 8192)
	f.transfer(t, c, 0, 4096, 1)
	until(t, "no kernel runs", func() bool { return f.dev.Running() == 0 })
	const stopped, step = time.Hour, 250 * time.Millisecond
	looks := []time.Duration{0, step}
	for at := stopped; at < stopped+10*time.Second; at += step {
		looks = append(looks, at)
	}
	byResults, byHeartbeat := f.Engine.HangsAt(0, looks...)
	require.Equal(t, stopped+3*time.Second, byResults, "a step and a quarter of 4 s had been spent")
	require.Equal(t, stopped+3*step, byHeartbeat, "a step and a quarter of 1 s had been spent")
	f.transfer(t, c, 0, 4096, 2)
	require.Nil(t, f.Controller.Failover())
}
