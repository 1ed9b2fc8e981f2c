package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/bounded"
	"github.com/lanefs/lanefs/gpu/calls"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/host"
)

// lacksNothing is a runtime of which some allocations hang.
type lacksNothing struct {
	gpu.Runtime
	*detached.Calls
}

func (lacksNothing) Missing() []string { return nil }

func (r lacksNothing) Alloc(kind gpu.MemKind, n int64) (gpu.Memory, error) {
	r.Call("alloc")
	return r.Runtime.Alloc(kind, n)
}

// TestOpenHungAgain: a GPU that has hung, when it was opened or later, is not opened again in the process, and another one is.
func TestOpenHungAgain(t *testing.T) {
	limit := openTimeout
	openTimeout = 500 * time.Millisecond
	defer func() { openTimeout = limit }()
	var c detached.Calls
	defer c.LetGo()
	opened := map[string]int{}
	open := func(which string) (gpu.Runtime, error) {
		rt, err := openGPU(t.Name(), which, func(which string) (gpuRuntime, error) {
			opened[which]++
			if which == "0" {
				c.Call("open")
			}
			rt, err := host.Open(host.Options{})
			return lacksNothing{rt, &c}, err
		}, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			return nil, err
		}
		return rt, nil
	}
	c.Stick("open")
	_, err := open("0")
	require.ErrorIs(t, err, calls.ErrHangs)
	_, again := open("0")
	require.Equal(t, err, again)
	require.Equal(t, 1, opened["0"])

	for range 2 { // as long as it does not hang
		rt, err := open("1")
		require.NoError(t, err)
		require.NoError(t, rt.Close())
	}
	rt, err := open("1")
	require.NoError(t, err)
	c.LetGo()
	c.Stick("alloc")
	_, err = rt.Alloc(gpu.HostMapped, 4096)
	require.ErrorIs(t, err, calls.ErrHangs)
	require.Equal(t, err, rt.(*bounded.Runtime).Hung())
	_, again = open("1")
	require.Equal(t, err, again)
	require.Equal(t, 3, opened["1"])
}
