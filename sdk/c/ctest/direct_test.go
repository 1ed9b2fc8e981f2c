package ctest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestDirect: what registered memory gets, in requests that end in any order, while the file grows.
func TestDirect(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	test := filepath.Join(t.TempDir(), "testdirect")
	compile(t, test, "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", "-Wl,--wrap=lanefs_ring_submit", filepath.Join("..", "testdirect.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread")
	m := sharetest.New(t, 128*mib, 32*mib)
	content := make([]byte, 17*mib)
	for i := range content {
		content[i] = byte(i % 251)
	}
	f := m.Write("file", content)
	require.NoError(t, f.Close())
	require.Equal(t, "ok\n", run(t, test, f.Name()))
}
