package cuda

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/gpu/internal/driver"
	"github.com/lanefs/lanefs/gpu/internal/dynlib"
	standin "github.com/lanefs/lanefs/lab/cuda"
)

// device opens device 0, or skips the test saying what is missing.
func device(t testing.TB) gpu.Runtime {
	r, err := Open(Options{})
	if err != nil && os.Getenv("LANEFS_NEED_CUDA") == "" {
		t.Skipf("this test needs an NVIDIA GPU: %v", err)
	}
	require.NoError(t, err)
	return r
}

// standIn is a directory with the stand-in for the driver's library, for the LD_LIBRARY_PATH of another process.
func standIn(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs cc: make deps installs it")
	}
	dir := t.TempDir()
	_, err = standin.Build(cc, dir)
	require.NoError(t, err)
	return dir
}

func TestRuntime(t *testing.T) {
	gputest.Keep(t, device)
	gputest.Runtime(t, device)
}

func TestLanes(t *testing.T) {
	gputest.Keep(t, device)
	gputest.Lanes(t, device)
}

func TestLoad(t *testing.T) {
	gputest.Keep(t, device)
	gputest.Load(t, device)
}

// BenchmarkLanes measures lanes without an engine: docs/PERFORMANCE.md says what.
func BenchmarkLanes(b *testing.B) {
	gputest.Keep(b, device)
	gputest.BenchmarkLanes(b, device)
}

// Without a driver, or without a device, the answer is one line that says so.
func TestAbsent(t *testing.T) {
	r, err := Open(Options{})
	if err == nil {
		require.NoError(t, r.Close())
		_, err = Open(Options{Device: "99"})
		require.ErrorContains(t, err, "device 99 does not exist: the driver shows")
		return
	}
	require.NotContains(t, err.Error(), "\n")
	var failed *driver.Error
	require.True(t, errors.Is(err, dynlib.ErrNotInstalled) || errors.As(err, &failed), "%v", err)
	require.Regexp(t, `^cuda runtime: (NVIDIA's driver is not on this machine|the driver)`, err.Error())
}

func TestPCIAddress(t *testing.T) {
	require.Equal(t, "0000:c1:00.0", pciAddress("00000000:C1:00.0"))
	require.Equal(t, "0000:c1:00.0", pciAddress("0000:C1:00.0"))
	require.Equal(t, "00010000:c1:00.0", pciAddress("00010000:C1:00.0"))
}
