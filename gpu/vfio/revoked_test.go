package vfio_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/pcie"
)

// Device memory whose owner takes it back while the controller has it mapped: the kernel revokes the DMA-BUF, commands
// on it end in an NVMe error, and everything else goes on. In the lab: LANEFS_TEST_VFIO is a controller, LANEFS_TEST_VRAM
// a function with memory in BAR 2.
func TestRevokedOnHardware(t *testing.T) {
	disk, memory := os.Getenv("LANEFS_TEST_VFIO"), os.Getenv("LANEFS_TEST_VRAM")
	if disk == "" || memory == "" {
		t.Skip("SKIP: no PCI functions to revoke memory between (LANEFS_TEST_VFIO, LANEFS_TEST_VRAM; make lab has them)")
	}
	bar, err := vfio.Open(memory, vfio.Options{BAR: 2})
	require.NoError(t, err)
	defer func() { require.NoError(t, bar.Close()) }()
	if bar.Backend() != vfio.IOMMUFD {
		t.Skip("SKIP: this kernel has no IOMMUFD, hence no DMA-BUFs to revoke")
	}
	e, err := bar.Export(2, 0, int64(len(bar.BAR())))
	require.NoError(t, err)
	defer unix.Close(e.FD)
	rt, err := host.Open(host.Options{Bank: &host.Bank{Name: memory, Bytes: bar.BAR(), DMABUF: e, Check: bar.Reachable}})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	dev, err := pcie.Open(disk, vfio.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	place, err := controller.ModeData.Placement()
	require.NoError(t, err)
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: dev, Placement: place})
	require.NoError(t, err)
	defer c.Close()
	eng, err := engine.New(c, engine.Config{Lanes: 1})
	require.NoError(t, err)
	chunk, err := c.AllocData(64 << 10)
	require.NoError(t, err)
	read := func() error {
		return eng.Do(0, []engine.Command{{Op: nvme.IORead, NSID: 1, NLB: 64 << 10 / 512, Data: chunk.IOVA(), Len: 64 << 10}})
	}
	copy(chunk.Bytes(), bytes.Repeat([]byte{0x5a}, 64<<10))
	require.NoError(t, read())
	require.NotEqual(t, byte(0x5a), chunk.Bytes()[0], "the command moved data into the BAR")

	require.NoError(t, bar.SetMemorySpace(false)) // the BAR no longer answers: its DMA-BUFs are revoked
	err = read()
	require.Error(t, err)
	t.Log(err)
	require.NoError(t, c.Err(), "one command failed, not the controller")

	require.NoError(t, eng.Do(0, []engine.Command{{Op: nvme.IOFlush, NSID: 1}}), "what needs none of that memory still works")

	require.NoError(t, bar.SetMemorySpace(true))
	require.ErrorContains(t, read(), "revoked", "the memory is back, its mapping is not")
	require.NoError(t, chunk.Close())
	require.NoError(t, eng.Close())
}
