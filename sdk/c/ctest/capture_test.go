package ctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/lab/cuda"
)

// TestCaptures: streams that are captured into graphs, contexts of the program's own and one that is lost, with a GPU of a stand-in for libcuda.
func TestCaptures(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	dir := t.TempDir()
	_, err := cuda.Build("cc", dir)
	require.NoError(t, err)
	test := filepath.Join(dir, "testcapture")
	compile(t, test, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", filepath.Join("..", "testcapture.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread", "-ldl")
	m := sharetest.New(t, 64*mib, 32*mib)
	content := make([]byte, 2*mib+17)
	for i := range content {
		content[i] = byte(i % 251)
	}
	for _, copies := range []string{"", "kernel", "calls", "batch"} {
		f := m.Write("file", content)
		require.NoError(t, f.Close())
		cmd := exec.Command(test, f.Name())
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "CUDA_VISIBLE_DEVICES=0", "LANEFS_COPIES="+copies)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", copies, out)
		require.Equal(t, "ok\n", string(out))
		got, err := os.ReadFile(f.Name())
		require.NoError(t, err)
		require.True(t, string(content) == string(got), "the file changed")
	}
}
