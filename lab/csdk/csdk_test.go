package csdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOnce: what was made is not made again, by neither of the two.
func TestOnce(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	dir, err := C()
	require.NoError(t, err)
	first, err := os.Stat(filepath.Join(dir, "liblanefs.a"))
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "liblanefs.so.1.0.0"))
	to := t.TempDir()
	require.NoError(t, CuFile("DESTDIR="+to, "PREFIX=/usr"))
	require.FileExists(t, filepath.Join(to, "usr/lib/lanefs/libcufile.so.0"))
	again, err := C()
	require.NoError(t, err)
	require.Equal(t, dir, again)
	second, err := os.Stat(filepath.Join(dir, "liblanefs.a"))
	require.NoError(t, err)
	require.True(t, os.SameFile(first, second), "another file")
	require.Equal(t, first.ModTime(), second.ModTime())
}

// TestFails: what make says is in the error.
func TestFails(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("needs make: make deps installs it")
	}
	require.ErrorContains(t, run(t.TempDir(), t.TempDir(), "all"), "No rule")
}
