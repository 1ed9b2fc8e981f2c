package engine_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/lab/rocm"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

func TestMain(m *testing.M) { os.Exit(testrig.Main(m, rocm.Use, rocm.Clean)) }

// openHost is a runtime on the CPU, until the test ends.
func openHost(t *testing.T) gpu.Runtime {
	t.Helper()
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(), "the runtime finds leaks") })
	return rt
}

// rig is a testrig.Rig with what the tests of lanes check of it.
type rig struct {
	*testrig.Rig
	lists uint64 // bytes of Dataset Management ranges: lanes count them as written, the controller counts user data
}

func newRig(t testing.TB, so softctl.Options, ec engine.Config) *rig {
	t.Helper()
	return &rig{Rig: testrig.New(t, so, ec)}
}
