package ctest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/lab/cuda"
)

// TestBadInput: memory, streams and handles that are not what a call needs, with two GPUs of a stand-in for libcuda.
func TestBadInput(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	dir := t.TempDir()
	_, err := cuda.Build("cc", dir)
	require.NoError(t, err)
	test := filepath.Join(dir, "testbad")
	compile(t, test, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", filepath.Join("..", "testbad.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread", "-ldl")
	// The memory of a MIG instance is asked for by its UUID: several are at one PCI address.
	for devices, says := range map[string]string{
		"GPU-11111111-2222-3333-4444-555555555555@0000:c1:00.0": "00000000:C1:00.0 0\n",
		"MIG-aaaaaaaa-2222-3333-4444-55555555555f@0000:c1:00.0": "MIG-aaaaaaaa-2222-3333-4444-55555555555f 0\n",
	} {
		cmd := exec.Command(test)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "CUDA_VISIBLE_DEVICES=0", "LANEFS_FAKE_CUDA="+devices)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, says, string(out))
		if bin, err := exec.LookPath("python3"); err == nil {
			cmd := exec.Command(bin, "-c", "from lanefs._driver import Driver as D\na = D.current_address('cuda')\nprint(a.replace('00000000', '0000'), D.of('cuda', a).ordinal.value)")
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "CUDA_VISIBLE_DEVICES=0", "LANEFS_FAKE_CUDA="+devices, "PYTHONPATH=../../python", "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Equal(t, strings.ToLower(strings.Replace(says, "00000000:", "0000:", 1)), strings.ToLower(string(out)))
		}
	}
	m := sharetest.New(t, 64*mib, 32*mib)
	content := make([]byte, 2*mib+17)
	for i := range content {
		content[i] = byte(i % 251)
	}
	f := m.Write("file", content)
	require.NoError(t, f.Close())
	cmd := exec.Command(test, f.Name())
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "CUDA_VISIBLE_DEVICES=0,1",
		"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.True(t, string(content) == string(got), "the file changed")
}
