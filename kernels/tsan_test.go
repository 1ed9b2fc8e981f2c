package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/tsan"
)

// TestThreadSanitizer runs the host build of the lanes under ThreadSanitizer, with lane, controller and CPU on threads of
// their own (tsan/lanes.cc), and shows that it would notice a missing fence. Lanes with several slots a thread, and waves, are what GPUs have.
// make test takes one of the three.
func TestThreadSanitizer(t *testing.T) {
	for k, c := range []struct {
		name, also string
		flags      []string
	}{
		{"Slot", "", nil},
		{"Slots", "", []string{"-DLANEFS_SLOTS=4"}},
		{"Wave", "no-meeting", []string{"-DLANEFS_WAVE=16"}},
	} {
		if disktest.Turn(k, 3) {
			t.Run(c.name, func(t *testing.T) { testThreadSanitizer(t, c.also, c.flags...) })
		}
	}
}

// A CID that is completed twice within one step is found by the second completion, in the same batch or the next: the command is answered once.
func testThreadSanitizer(t *testing.T, also string, flags ...string) {
	binary := filepath.Join(t.TempDir(), "lanes")
	tsan.Compile(t, binary, []string{"engine.hip", "-I."}, append(flags, "-x", "c++", "-std=c++17", "-O1", "-g", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror",
		filepath.Join("tsan", "lanes.cc"), "-lpthread")...)
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
