package testrig

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/copyengine"
	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/hip"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// OpenRuntime opens the runtime that tests run their lanes on.
func OpenRuntime(t testing.TB) gpu.Runtime {
	t.Helper()
	rt, err := Runtime()
	require.NoError(t, err)
	return rt
}

// Runtime opens the runtime that LANEFS_TEST_GPU names, host by default. hip runs on the shim that LANEFS_SHIM names.
func Runtime() (gpu.Runtime, error) {
	switch name := os.Getenv("LANEFS_TEST_GPU"); name {
	case "", "host":
		return host.Open(host.Options{})
	case "cuda":
		return cuda.Open(cuda.Options{})
	case "hip":
		return hip.Open(hip.Options{})
	case "detached":
		return detached.New(false)
	default:
		return nil, fmt.Errorf("LANEFS_TEST_GPU is %q: want host, detached, hip or cuda", name)
	}
}

// Team is the team that works on the lanes: LANEFS_TEST_LANE says thread or wave, thread by default.
func Team(t testing.TB) engine.Team {
	t.Helper()
	switch name := os.Getenv("LANEFS_TEST_LANE"); name {
	case "", "thread":
		return engine.TeamThread
	case "wave":
		return engine.TeamWave
	default:
		t.Fatalf("LANEFS_TEST_LANE is %q: want thread or wave", name)
	}
	return 0
}

// Served adds to the options of a controller whose lanes run on a device: threads, as many as LANEFS_TEST_THREADS says or half of the
// machine's CPUs, and a copy engine.
func Served(t testing.TB, rt gpu.Runtime, so softctl.Options) softctl.Options {
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
	e, err := copyengine.New(rt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	so.Mover = e
	return so
}

// Main runs the tests of a package. It keeps the device's context open: each test opens a runtime, and a context takes most of a
// second. With LANEFS_TEST_GPU=hip the tests run on AMD's libraries; begin, if not nil, puts a stand-in in their place, and end takes it
// away.
func Main(m *testing.M, begin, end func() error) int {
	if begin != nil && os.Getenv("LANEFS_TEST_GPU") == "hip" {
		if err := begin(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer end()
	}
	keep, err := Runtime()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := keep.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
