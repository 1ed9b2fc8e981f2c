package kernels

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/made"
)

// TestQueuePair runs nvme_qp.h and its example against a controller that is plain memory: on the CPU (qp/test.cc), by clang and by
// gcc, and on an NVIDIA GPU (qp/test.cu), where there is nvcc. Its threads poll: make test takes one of the three on the CPU, and the GPU.
func TestQueuePair(t *testing.T) {
	for k, c := range []struct {
		compiler string
		args     []string
	}{
		{"clang-19", []string{"-O0", "-x", "c++", "-Wall", "-Wextra", "-Werror", "qp/test.cc", "-lpthread"}},
		{"clang-19", []string{"-O3", "-x", "c++", "-Wall", "-Wextra", "-Werror", "qp/test.cc", "-lpthread"}},
		{"gcc", []string{"-O2", "-x", "c++", "-Wall", "-Wextra", "-Werror", "qp/test.cc", "-lpthread"}},
		{"nvcc", []string{"-Xcompiler", "-Wall", "qp/test.cu"}},
	} {
		if c.compiler != "nvcc" && !disktest.Turn(k, 3) {
			continue
		}
		t.Run(c.compiler+c.args[0], func(t *testing.T) {
			if _, err := exec.LookPath(c.compiler); err != nil {
				t.Skipf("%s is missing", c.compiler)
			}
			binary := filepath.Join(t.TempDir(), "qp")
			require.NoError(t, made.Compile(binary, []string{"-I."}, c.compiler, append([]string{"-std=c++17"}, c.args...)...))
			c := exec.Command(binary)
			out, err := c.CombinedOutput()
			if c.ProcessState.ExitCode() == 77 {
				t.Skip("no NVIDIA GPU")
			}
			require.NoError(t, err, "%s", out)
			require.Equal(t, "ok\n", string(out))
		})
	}
}
