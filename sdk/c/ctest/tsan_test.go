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
	"github.com/lanefs/lanefs/lab/tsan"
)

// TestThreadSanitizer: what the threads that put batches on streams and the stage's own thread have in common, with a GPU of the stand-in.
func TestThreadSanitizer(t *testing.T) {
	dir := t.TempDir()
	_, err := cuda.Build(tsan.Clang(t), dir, "-fsanitize=thread")
	require.NoError(t, err)
	test := filepath.Join(dir, "testasync")
	sources, err := filepath.Glob("../*.c")
	require.NoError(t, err)
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-I..", "../images.S", "../testasync.c"}
	for _, s := range sources {
		if base := filepath.Base(s); !strings.HasPrefix(base, "test") && base != "example.c" {
			args = append(args, s)
		}
	}
	tsan.Compile(t, test, []string{"../images"}, append(args, "-lpthread", "-ldl")...)
	m := sharetest.New(t, 64*mib, 32*mib)
	f := m.Write("file", make([]byte, 2*mib))
	require.NoError(t, f.Close())
	cmd := exec.Command(test, f.Name())
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "CUDA_VISIBLE_DEVICES=0", "TSAN_OPTIONS=halt_on_error=0 exitcode=66",
		"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0")
	out, err := tsan.Run(t, cmd)
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", out)
}
