package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChoose(t *testing.T) {
	all := []Listed{{"0000:01:00.0", "GPU-11111111-2222-3333-4444-555555555555"}, {"0000:c1:00.0", "GPU-11115555-2222-3333-4444-555555555555"},
		{"0001:c1:00.0", "MIG-aaaaaaaa-2222-3333-4444-555555555555"}, {"0000:c2:00.0", ""}}
	for which, want := range map[string]int{
		"GPU-11111111-2222-3333-4444-555555555555": 0, "gpu-11115555-2222-3333-4444-555555555555": 1, "GPU-11115": 1, "MIG-a": 2, "MIG-AAAAAAAA-2222": 2,
		"0000:01:00.0": 0, "01:00.0": 0, "C1:00.0": 1, "00000000:C1:00.0": 1, "0001:c1:00.0": 2, "00000001:C1:00.0": 2, "0000:c2:00.0": 3,
	} {
		n, err := Choose(which, all)
		require.NoError(t, err, which)
		require.Equal(t, want, n, which)
	}
	for which, says := range map[string]string{
		"GPU-1111": "is the beginning of two devices' names", "GPU-9": `no device is "GPU-9"; there are 0: GPU-11111111-2222-3333-4444-555555555555 at 0000:01:00.0, 1: `,
		"0002:c1:00.0": "no device is", "c1:00.1": "no device is", "GPU-11111111-2222-3333-4444-5555555555556": "no device is",
	} {
		_, err := Choose(which, all)
		require.ErrorContains(t, err, says, which)
	}
	_, err := Choose("GPU-1", nil)
	require.ErrorContains(t, err, "there are none")
}

func TestWhich(t *testing.T) {
	for _, good := range []string{"GPU-1", "MIG-GPU-11111111-2222-3333-4444-555555555555/1/0", "gpu-0123456789abcdef"} {
		require.True(t, IsUUID(good), good)
	}
	for _, bad := range []string{"", "GPU", "GPU-", "GPU--", "TPU-1", "GPU-1 ", "GPU-1,2", "GPU-1=", "0"} {
		require.False(t, IsUUID(bad), bad)
	}
	for _, bad := range []string{"", "c1:00", "c1:00.8", "0000:c1:00.0 ", "g1:00.0", "000:c1:00.0"} {
		require.False(t, IsPCIAddress(bad), bad)
	}
	require.True(t, SameDevice("00000000:C1:00.0", "0000:c1:00.0") && SameDevice("host:1", "host:1") && SameDevice("MIG-A", "mig-a"))
	require.False(t, SameDevice("0001:c1:00.0", "0000:c1:00.0") || SameDevice("", "0000:c1:00.0") || SameDevice("host:1", "host:2"))
	require.Equal(t, "0000:01:00.0", (&Facts{PCI: "0000:01:00.0", UUID: "GPU-1"}).Identity())
	require.Equal(t, "MIG-1", (&Facts{PCI: "0000:01:00.0", UUID: "MIG-1"}).Identity())
}
