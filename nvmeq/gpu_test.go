package nvmeq_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// openRuntime is what the tests of this package run their lanes on: LANEFS_TEST_GPU names it, host by default.
func openRuntime(t testing.TB) gpu.Runtime {
	t.Helper()
	var rt gpu.Runtime
	var err error
	switch name := os.Getenv("LANEFS_TEST_GPU"); name {
	case "", "host":
		rt, err = host.Open(host.Options{})
	case "cuda":
		rt, err = cuda.Open(cuda.Options{})
	default:
		t.Fatalf("LANEFS_TEST_GPU is %q: want host or cuda", name)
	}
	require.NoError(t, err)
	return rt
}

// served adds to a controller whose lanes run on a device: threads, as many as LANEFS_TEST_THREADS says or half of the
// machine's CPUs, and a copy engine.
func served(t testing.TB, rt gpu.Runtime, so softctl.Options) softctl.Options {
	t.Helper()
	if rt.Facts().CallerDriven {
		return so
	}
	if so.Threads == 0 {
		so.Threads = max(runtime.NumCPU()/2, 1)
		if s := os.Getenv("LANEFS_TEST_THREADS"); s != "" {
			var err error
			so.Threads, err = strconv.Atoi(s)
			require.NoError(t, err)
		}
	}
	e, err := softctl.NewCopyEngine(rt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	so.Mover = e
	return so
}

// TestMain keeps the device's context open: each test opens a runtime, and a context takes most of a second.
func TestMain(m *testing.M) {
	var keep gpu.Runtime
	if os.Getenv("LANEFS_TEST_GPU") == "cuda" {
		var err error
		if keep, err = cuda.Open(cuda.Options{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	if keep != nil {
		if err := keep.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
