package engine_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// A controller that completes its commands after device memory was taken away moved no data; so they fail, and nothing
// else does.
func TestMemoryTakenAway(t *testing.T) {
	const size = 64 << 20
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(memory)) }()
	var gone atomic.Bool
	rt, err := host.Open(host.Options{Bank: &host.Bank{Name: "a BAR", Bytes: memory,
		DMABUF: gpu.Export{FD: -1, Size: size, Kind: gpu.ExportDMABUF},
		Check: func() error {
			if gone.Load() {
				return errors.New("the BAR is gone")
			}
			return nil
		}}})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	for mode, fails := range map[controller.MemoryMode]bool{0: false, controller.ModeData: true} {
		gone.Store(false)
		soft, err := softctl.Open(testrig.NewImage(t), softctl.Options{})
		require.NoError(t, err)
		place, err := mode.Placement()
		require.NoError(t, err)
		c, err := controller.Open(controller.Config{Runtime: rt, Transport: soft, Placement: place})
		require.NoError(t, err)
		eng, err := engine.New(c, engine.Config{Lanes: 2})
		require.NoError(t, err)
		chunk, err := c.AllocData(8192)
		require.NoError(t, err)
		cmds := func() []engine.Command {
			return []engine.Command{{Op: nvme.IORead, NSID: 1, NLB: 8, Data: chunk.IOVA(), Len: 4096},
				{Op: nvme.IORead, NSID: 1, NLB: 8, Data: chunk.IOVA() + 4096, Len: 4096}}
		}
		for _, do := range []func([]engine.Command) error{eng.Spread, func(c []engine.Command) error { return eng.Do(0, c) }} {
			gone.Store(false)
			require.NoError(t, do(cmds()))
			gone.Store(true)
			moved := cmds()
			err := do(moved)
			if fails {
				require.ErrorContains(t, err, "its data is lost: the BAR is gone")
				require.Error(t, moved[1].Err)
			} else {
				require.NoError(t, err, "data in host memory")
			}
			require.NoError(t, do([]engine.Command{{Op: nvme.IOFlush, NSID: 1}}))
		}
		require.NoError(t, c.Err())
		require.NoError(t, chunk.Close())
		require.NoError(t, eng.Close())
		require.NoError(t, c.Close())
		require.NoError(t, soft.Close())
	}
}
