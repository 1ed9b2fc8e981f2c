package engine_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// openDetached is a runtime of kernels that run by themselves, until the test ends.
func openDetached(t *testing.T) *detached.Runtime {
	t.Helper()
	dev, err := detached.New(false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close(), "the runtime finds leaks") })
	return dev
}

// openServed is a controller over an image of its own that serves lanes on rt, until the test ends.
func openServed(t *testing.T, rt gpu.Runtime, so softctl.Options) *softctl.Controller {
	t.Helper()
	so.Log = slog.New(slog.DiscardHandler)
	soft, err := softctl.Open(testrig.NewImage(t), testrig.Served(t, rt, so))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, soft.Close()) })
	return soft
}

// newDetached is an engine on a detached runtime.
func newDetached(t *testing.T, lanes int) (*detached.Runtime, *rig) {
	t.Helper()
	dev := openDetached(t)
	soft := openServed(t, dev, softctl.Options{})
	c, err := controller.Open(controller.Config{Runtime: dev, Transport: soft, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, engine.Config{Lanes: lanes})
	require.NoError(t, err)
	return dev, &rig{Rig: &testrig.Rig{Runtime: dev, Controller: c, Engine: e, Soft: soft, Block: 512}}
}
