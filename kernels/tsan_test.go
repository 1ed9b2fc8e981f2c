package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestThreadSanitizer runs the host build of the lanes under ThreadSanitizer, with lane, controller and CPU on threads of
// their own (tsan/lanes.cc), and shows that it would notice a missing fence. Lanes with several slots a thread are what GPUs have.
func TestThreadSanitizer(t *testing.T) {
	t.Run("Slot", func(t *testing.T) { testThreadSanitizer(t) })
	t.Run("Slots", func(t *testing.T) { testThreadSanitizer(t, "-DLANEFS_SLOTS=4") })
}

func testThreadSanitizer(t *testing.T, flags ...string) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19 libclang-rt-19-dev")
	}
	binary := filepath.Join(t.TempDir(), "lanes")
	out, err := exec.Command(clang, append(flags, "-x", "c++", "-std=c++17", "-O1", "-g", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror",
		"-fsanitize=thread", "-o", binary, filepath.Join("tsan", "lanes.cc"), "-lpthread")...).CombinedOutput()
	if err != nil && strings.Contains(string(out), "libclang_rt.tsan") {
		t.Skip("ThreadSanitizer's runtime is missing: apt-get install libclang-rt-19-dev")
	}
	require.NoError(t, err, "%s", out)
	lanes := func(args ...string) (string, error) {
		c := exec.Command(binary, args...)
		c.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1")
		out, err := c.CombinedOutput()
		if strings.Contains(string(out), "unexpected memory mapping") {
			t.Skip("ThreadSanitizer does not run under this kernel's address layout: sysctl vm.mmap_rnd_bits=28")
		}
		return string(out), err
	}
	said, err := lanes("5000")
	require.NoError(t, err, "%s", said)
	require.Contains(t, said, "5000 commands, each answered once")
	for _, missing := range []string{"no-release", "no-acquire"} {
		said, err := lanes("5000", missing)
		require.Error(t, err, missing)
		require.Contains(t, said, "WARNING: ThreadSanitizer: data race", missing)
	}
}
