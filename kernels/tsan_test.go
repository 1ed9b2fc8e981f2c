package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/lab/tsan"
)

// TestThreadSanitizer runs the host build of the lanes under ThreadSanitizer, with lane, controller and CPU on threads of
// their own (tsan/lanes.cc), and shows that it would notice a missing fence. Lanes with several slots a thread, and waves, are what GPUs have.
func TestThreadSanitizer(t *testing.T) {
	t.Run("Slot", func(t *testing.T) { testThreadSanitizer(t, "") })
	t.Run("Slots", func(t *testing.T) { testThreadSanitizer(t, "", "-DLANEFS_SLOTS=4") })
	t.Run("Wave", func(t *testing.T) { testThreadSanitizer(t, "no-meeting", "-DLANEFS_WAVE=16") })
}

// A CID that is completed twice within one step is found by the second completion, in the same batch or the next: the command is answered once.
func testThreadSanitizer(t *testing.T, also string, flags ...string) {
	binary := filepath.Join(t.TempDir(), "lanes")
	tsan.Compile(t, append(flags, "-x", "c++", "-std=c++17", "-O1", "-g", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror",
		"-o", binary, filepath.Join("tsan", "lanes.cc"), "-lpthread")...)
	lanes := func(args ...string) (string, error) {
		c := exec.Command(binary, args...)
		c.Env = append(os.Environ(), "TSAN_OPTIONS=halt_on_error=1")
		return tsan.Run(t, c)
	}
	said, err := lanes("5000")
	require.NoError(t, err, "%s", said)
	require.Contains(t, said, "5000 commands, each answered once")
	for _, twice := range []string{"together", "apart"} {
		said, err := lanes(twice)
		require.NoError(t, err, "%s", said)
		require.Contains(t, said, "each command was answered once")
	}
	for _, missing := range []string{"no-release", "no-acquire", also} {
		if missing == "" {
			continue
		}
		said, err := lanes("5000", missing)
		require.Error(t, err, missing)
		require.Contains(t, said, "WARNING: ThreadSanitizer: data race", missing)
	}
}
