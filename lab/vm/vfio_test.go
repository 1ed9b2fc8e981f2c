package vm

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tests of nvmeq/vfio that need a function of their own: every system call fails once, and a DMA-BUF is revoked.
func TestVFIO(t *testing.T) {
	bound(t, nvme0)
	bound(t, ivshmem)
	cmd := exec.Command("vfio.test", "-test.v", "-test.timeout", "15m", "-test.run", "Hardware$")
	cmd.Env = append(cmd.Environ(), "LANEFS_TEST_VFIO="+nvme0, "LANEFS_TEST_VRAM="+ivshmem)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Contains(t, string(out), "--- PASS: TestFaultsOnHardware")
	require.Regexp(t, "--- (PASS|SKIP): TestRevokedOnHardware", string(out)) // type1 has no DMA-BUFs
}
