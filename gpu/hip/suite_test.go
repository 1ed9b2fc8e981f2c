package hip

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/gpu/hip/shim"
)

// device opens device 0, or skips the test saying what is missing.
func device(t testing.TB) gpu.Runtime {
	t.Helper()
	r, err := Open(Options{})
	if err != nil && !shim.Used() && os.Getenv("LANEFS_NEED_HIP") == "" {
		t.Skipf("this test needs an AMD GPU, or gcc for the shim: %v", err)
	}
	require.NoError(t, err)
	return r
}

// keep holds the device open while a suite opens and closes runtimes by the dozen.
func keep(t testing.TB) {
	t.Helper()
	r := device(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	t.Logf("%+v", r.Facts())
}

func TestRuntime(t *testing.T) {
	keep(t)
	gputest.Runtime(t, device)
}

func TestLanes(t *testing.T) {
	keep(t)
	gputest.Lanes(t, device)
}
