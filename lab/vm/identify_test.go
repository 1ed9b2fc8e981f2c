package vm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Identify through VFIO returns what QEMU's command line gave the controller.
func TestIdentify(t *testing.T) {
	require.Contains(t, refused(t, "identify", nvme0), "run `lanefs bind "+nvme0+"` first")
	bound(t, nvme0)
	out := lanefs(t, "identify", nvme0)
	require.Contains(t, out, "QEMU NVMe Ctrl")
	require.Contains(t, out, "LANEFS-0")
	require.Contains(t, out, "1048576 blocks of 512 bytes")
	require.NotContains(t, out, "simulated")
	require.Equal(t, out, lanefs(t, "identify", nvme0), "a second time, all the same")

	require.Contains(t, refused(t, "identify", "0000:00:1f.7"), "there is no PCI function 0000:00:1f.7")
	require.Contains(t, refused(t, "identify", ivshmem), "is no NVMe controller")
}
