package vm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRing: a lane rings the admin doorbell from a kernel, and the answer arrives in device memory: the runtime's own, and a
// peer's BAR.
func TestRing(t *testing.T) {
	bound(t, nvme0)
	bound(t, ivshmem)
	for _, args := range [][]string{{"--ring", "gpu"}, {"--ring", "gpu", "--vram", ivshmem}} {
		var id struct {
			Serial string
			Cache  *struct{ On bool } `json:"volatile_write_cache"`
			Ring   struct{ Runtime, Memory, Model, Serial string }
		}
		lanefsJSON(t, &id, append([]string{"identify", "--json", nvme0}, args...)...)
		require.Equal(t, "LANEFS-0", id.Serial)
		require.Equal(t, "LANEFS-0", id.Ring.Serial, "as read from device memory")
		require.Equal(t, "QEMU NVMe Ctrl", id.Ring.Model)
		require.Equal(t, "host", id.Ring.Runtime)
		if len(args) > 2 {
			require.Contains(t, id.Ring.Memory, " of "+ivshmem)
		}
		require.NotNil(t, id.Cache, "QEMU's controller has a volatile write cache")
	}
	require.Contains(t, lanefs(t, "identify", "--ring", "gpu", nvme0), "rung by a kernel")
}

// TestIdentifyCMB: identify prints the controller memory buffer.
func TestIdentifyCMB(t *testing.T) {
	addr := plug(t, medium(t, 7), map[string]any{"cmb_size_mb": 16, "mdts": 3})
	bound(t, addr)
	var id struct {
		MDTS     int
		Transfer int64 `json:"max_transfer"`
		CMB      *struct {
			BAR    int
			Size   int64
			SQ     bool `json:"submission_queues"`
			Writes bool `json:"data_written"`
		}
		Namespaces []struct {
			Blocks  uint64
			Formats []struct {
				Size  int64
				InUse bool `json:"in_use"`
			} `json:"lba_formats"`
		}
	}
	lanefsJSON(t, &id, "identify", "--json", addr)
	require.NotNil(t, id.CMB)
	require.EqualValues(t, 16<<20, id.CMB.Size)
	require.Equal(t, 2, id.CMB.BAR)
	require.True(t, id.CMB.SQ && id.CMB.Writes)
	require.Equal(t, 3, id.MDTS)
	require.EqualValues(t, 8*4096, id.Transfer)
	require.Len(t, id.Namespaces, 1)
	require.EqualValues(t, 1<<20, id.Namespaces[0].Blocks)
	used := 0
	for _, f := range id.Namespaces[0].Formats {
		if f.InUse {
			used++
			require.EqualValues(t, 512, f.Size)
		}
	}
	require.Equal(t, 1, used)
}
