package rocm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/gpu/hip"
	"github.com/lanefs/lanefs/lab/rocm"
)

// device opens device 0. It skips the test if there is none, with what is missing.
func device(t testing.TB) gpu.Runtime {
	t.Helper()
	r, err := hip.Open(hip.Options{})
	if err != nil && !rocm.Used() && os.Getenv("LANEFS_NEED_HIP") == "" {
		t.Skipf("this test needs an AMD GPU, or gcc for the shim: %v", err)
	}
	require.NoError(t, err)
	return r
}

func TestRuntime(t *testing.T) {
	gputest.Keep(t, device)
	gputest.Runtime(t, device)
}

func TestLanes(t *testing.T) {
	gputest.Keep(t, device)
	gputest.Lanes(t, device)
}
