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

// terms is a keeper that counts.
type terms struct {
	err, lost error // of Revoked, of Arrived
	arrived   int
}

func (k *terms) Revoked() error { return k.err }
func (k *terms) Arrived() error { k.arrived++; return k.lost }

// lent is memory on terms.
type lent struct {
	gpu.Memory
	keeper gpu.Keeper
}

func (m lent) Reach() gpu.Reach { return gpu.Reach{Owner: gpu.OwnerFunction, Keeper: m.keeper} }

// TestBorrowedMemory: memory that a caller lends has its own keeper, wherever the controller's own data is. It is asked once for a batch,
// makes visible what the controller wrote there, and fails what moved data when it was taken away; other commands it does not touch.
func TestBorrowedMemory(t *testing.T) {
	r := testrig.New(t, softctl.Options{}, engine.Config{Lanes: 2})
	m, err := r.Runtime.Alloc(gpu.HostMapped, 8192)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	k := &terms{}
	borrowed, err := r.Controller.Borrow(lent{m, k})
	require.NoError(t, err)
	own := r.Chunk(t, 4096)
	cmds := func(op nvme.Opcode) []engine.Command {
		return []engine.Command{r.RW(nvme.IORead, 0, own, 0, 4096), r.RW(op, 8, borrowed, 0, 4096), r.RW(op, 16, borrowed, 4096, 4096)}
	}
	require.NoError(t, r.Engine.Do(0, cmds(nvme.IORead)))
	require.Equal(t, 1, k.arrived)
	require.NoError(t, r.Engine.Spread(cmds(nvme.IOWrite)))
	require.Equal(t, 1, k.arrived, "nothing was written there")
	k.err = errors.New("the memory is gone")
	for _, do := range []func([]engine.Command) error{r.Engine.Spread, func(c []engine.Command) error { return r.Engine.Do(0, c) }} {
		moved := cmds(nvme.IORead)
		require.ErrorContains(t, do(moved), "its data is lost: the memory is gone")
		require.NoError(t, moved[0].Err)
		require.Error(t, moved[1].Err)
		require.Error(t, moved[2].Err)
	}
	require.NoError(t, borrowed.Close())
	require.False(t, r.Controller.Kept())
}
