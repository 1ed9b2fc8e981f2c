// Package namespacetest opens a whole stack for tests. A Namespace is on top, lanes on the CPU below it, and at the bottom the software
// controller of an image.
package namespacetest

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// OpenLanes opens namespace 1 of an image behind the software controller, with lanes on the CPU. The caller closes the namespace; what
// is below it is closed when the test ends.
func OpenLanes(t testing.TB, image string, soft softctl.Options, lanes engine.Config) *namespace.Namespace {
	t.Helper()
	return OpenLanesOf(t, image, soft, lanes, namespace.Options{})
}

// OpenLanesOf is OpenLanes with options of the namespace.
func OpenLanesOf(t testing.TB, image string, soft softctl.Options, lanes engine.Config, opt namespace.Options) *namespace.Namespace {
	t.Helper()
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close()) })
	return openLanes(t, rt, image, soft, lanes, opt)
}

// OpenLanesOn is OpenLanes on the caller's runtime.
func OpenLanesOn(t testing.TB, rt gpu.Runtime, image string, soft softctl.Options, lanes engine.Config) *namespace.Namespace {
	t.Helper()
	return openLanes(t, rt, image, soft, lanes, namespace.Options{})
}

func openLanes(t testing.TB, rt gpu.Runtime, image string, soft softctl.Options, lanes engine.Config, opt namespace.Options) *namespace.Namespace {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if soft.Log == nil {
		soft.Log = log
	}
	ctl, err := softctl.Open(image, soft)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctl.Close()) })
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: ctl, Log: log})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	e, err := engine.New(c, lanes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	d, err := namespace.Open(e, 1, opt)
	require.NoError(t, err)
	return d
}
