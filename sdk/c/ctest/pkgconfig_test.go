package ctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPkgConfig: a program is built against both libraries by what pkg-config says of an installed tree that was moved; of the system's own
// directories it says nothing.
func TestPkgConfig(t *testing.T) {
	for _, tool := range []string{"cc", "make", "pkg-config"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: apt-get install --no-install-recommends pkgconf", tool)
		}
	}
	at := t.TempDir()
	first, moved, build := filepath.Join(at, "first"), filepath.Join(at, "moved"), "BUILD="+library(t)
	for _, lib := range []string{"lib", "lib/x86_64-linux-gnu"} {
		run(t, "make", "-s", "-C", "..", "install", build, "PREFIX="+first, "LIBDIR="+filepath.Join(first, lib))
		require.NoError(t, os.Rename(first, moved))
		dir := filepath.Join(moved, lib)
		flags := func(args ...string) []string {
			cmd := exec.Command("pkg-config", append(args, "--cflags", "--libs", "lanefs >= 1.0")...)
			cmd.Env = append(os.Environ(), "PKG_CONFIG_LIBDIR="+filepath.Join(dir, "pkgconfig"), "PKG_CONFIG_PATH=")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			return strings.Fields(string(out))
		}
		for _, needed := range []string{"-pthread", "-ldl"} { // by C libraries that have them apart, as glibc's before 2.34
			require.Contains(t, flags("--static"), needed)
		}
		for kind, args := range map[string][]string{"shared": flags(), "static": append([]string{"-static"}, flags("--static")...)} {
			program := filepath.Join(at, kind)
			run(t, "cc", append([]string{"-o", program, filepath.Join("..", "example.c")}, args...)...)
			cmd := exec.Command(program, "/proc/self/status")
			if kind == "shared" {
				said, err := cmd.CombinedOutput()
				require.Error(t, err)
				require.Contains(t, string(said), "liblanefs.so.1", "it is linked with the shared library")
				cmd = exec.Command(program, "/proc/self/status")
				cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
			}
			said, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(said), "not on a LaneFS mount", kind)
		}
		require.NoError(t, os.RemoveAll(moved))
	}

	run(t, "make", "-s", "-C", "..", "install", build, "DESTDIR="+first, "PREFIX=/usr", "LIBDIR=/usr/lib/x86_64-linux-gnu")
	cmd := exec.Command("pkg-config", "--cflags", "--libs", "lanefs")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_LIBDIR="+filepath.Join(first, "usr/lib/x86_64-linux-gnu/pkgconfig"), "PKG_CONFIG_PATH=",
		"PKG_CONFIG_SYSTEM_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu", "PKG_CONFIG_SYSTEM_INCLUDE_PATH=/usr/include")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "-llanefs", strings.TrimSpace(string(out)))
}
