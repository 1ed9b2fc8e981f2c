package kernels

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestQueuePair runs nvme_qp.h and its example on the CPU, against a controller that is plain memory (qp/test.cc).
func TestQueuePair(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19")
	}
	for _, optimize := range []string{"-O0", "-O3"} {
		binary := filepath.Join(t.TempDir(), "qp")
		out, err := exec.Command(clang, "-x", "c++", "-std=c++17", optimize, "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror",
			"-o", binary, filepath.Join("qp", "test.cc"), "-lpthread").CombinedOutput()
		require.NoError(t, err, "%s", out)
		out, err = exec.Command(binary).CombinedOutput()
		require.NoError(t, err, "%s: %s", optimize, out)
		require.Equal(t, "ok\n", string(out))
	}
}
