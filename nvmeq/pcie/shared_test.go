package pcie

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var lent = Shared{Serial: "S1", Model: "Dual Port", NSID: 2}

// TestClaimShared: a namespace has one user, others of the drive and those of other drives are not meant.
func TestClaimShared(t *testing.T) {
	sys := machine(t, map[string]string{"dev/vfio/vfio": ""}).System()
	release, err := ClaimShared(sys, lent)
	require.NoError(t, err)
	_, err = ClaimShared(sys, lent)
	require.ErrorContains(t, err, "namespace 2 of the drive Dual Port, serial S1 is in use: another LaneFS has it")
	for _, other := range []Shared{{"S1", "Dual Port", 1}, {"S2", "Dual Port", 2}, {"S1", "Other", 2}} {
		also, err := ClaimShared(sys, other)
		require.NoError(t, err, "%v", other)
		also()
	}
	_, err = ClaimShared(sys, lent)
	require.Error(t, err)
	release()
	release, err = ClaimShared(sys, lent)
	require.NoError(t, err)
	release()
	release() // a second time

	require.NoError(t, os.Remove(sys.Path("dev/vfio/vfio")))
	_, err = ClaimShared(sys, lent)
	require.ErrorContains(t, err, "cannot be locked")
	require.NoError(t, os.WriteFile(sys.Path("dev/iommu"), nil, 0o600))
	release, err = ClaimShared(sys, lent)
	require.NoError(t, err)
	release()
}

// TestClaimSharedKernel: the kernel's block devices of the namespace are those of each controller that has the drive's serial number and
// model, one where it has several paths. One that cannot be opened cannot be kept from others, and then there is no lock left.
func TestClaimSharedKernel(t *testing.T) {
	const nvme = "sys/class/nvme/"
	sys := machine(t, map[string]string{
		"dev/vfio/vfio":      "",
		nvme + "nvme0/model": "Dual Port", nvme + "nvme0/serial": "S1", nvme + "nvme0/nvme0n1/nsid": "1", nvme + "nvme0/nvme0n7/nsid": "2",
		nvme + "nvme1/model": "Dual Port  ", nvme + "nvme1/serial": "S1  ", nvme + "nvme1/nvme0c1n7/nsid": "2",
		nvme + "nvme2/model": "Dual Port", nvme + "nvme2/serial": "S2", nvme + "nvme2/nvme2n1/nsid": "2",
		nvme + "nvme3/model": "Single", nvme + "nvme3/serial": "S1", nvme + "nvme3/nvme3n1/nsid": "2",
	}).System()
	require.Equal(t, []string{"nvme0n7"}, lent.disks(sys))
	for range 2 {
		_, err := ClaimShared(sys, lent)
		require.ErrorContains(t, err, "the kernel's driver has it through another controller as nvme0n7, which cannot be kept from others: no such file")
	}
	require.NoError(t, os.WriteFile(sys.Path("dev/nvme0n7"), nil, 0o600))
	release, err := ClaimShared(sys, lent)
	require.NoError(t, err)
	release()
}
