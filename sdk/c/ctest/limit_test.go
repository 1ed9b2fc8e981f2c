package ctest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestLimit: in a program with a limit of a file's size a stage fails with EFBIG, and SIGXFSZ does not end the program.
func TestLimit(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	test := filepath.Join(t.TempDir(), "testlimit")
	compile(t, test, "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", filepath.Join("..", "testlimit.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread")
	m := sharetest.New(t, 64*mib, 32*mib)
	content := make([]byte, mib)
	for i := range content {
		content[i] = byte(i % 251)
	}
	f := m.Write("file", content)
	require.NoError(t, f.Close())
	require.Equal(t, "ok\n", run(t, test, f.Name()))
}
