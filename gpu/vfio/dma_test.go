package vfio

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// of is memory whose owner is another. The CPU sees it all the same, as it sees a GPU's by a large BAR.
type of struct {
	gpu.Memory
	owner gpu.Owner
}

func (m of) Reach() gpu.Reach { return gpu.Reach{Owner: m.owner} }

// Type1 follows an address to whatever is there, and pins only pages: memory that its owner may move is refused, though the CPU has a
// view of it. IOMMUFD maps it by its file, and hears of moves.
func TestMemoryThatMoves(t *testing.T) {
	both(t, asIs, func(t *testing.T, d *double, dev *Device) {
		pages, file := memories(t, 8192)
		for owner, m := range map[gpu.Owner]gpu.Memory{gpu.OwnerDevice: file, gpu.OwnerDriver: pages} {
			at, err := dev.Map(of{m, owner}, 0, 8192)
			if dev.Backend() == Type1 {
				require.ErrorContains(t, err, "type1 would not hear when "+owner.String()+" moves this "+m.Kind().String()+" memory")
				require.Empty(t, d.mapped)
				require.Empty(t, dev.iovas.used)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, dev.Unmap(at))
		}
		at, err := dev.Map(of{file, gpu.OwnerFunction}, 0, 8192)
		require.NoError(t, err, "what VFIO exported stays where it is")
		require.NoError(t, dev.Unmap(at))
	})
}

// What is mapped for a drive may be given to programs read-only afterwards: to map it seals nothing.
func TestMappedIsExportedReadOnly(t *testing.T) {
	both(t, asIs, func(t *testing.T, _ *double, dev *Device) {
		_, file := memories(t, 8192)
		at, err := dev.Map(file, 0, 8192)
		require.NoError(t, err)
		e, err := file.(interface {
			ExportReadOnly(gpu.ExportKind) (gpu.Export, error)
		}).ExportReadOnly(gpu.ExportMemFD)
		require.NoError(t, err)
		require.NoError(t, unix.Close(e.FD))
		require.NoError(t, dev.Unmap(at))
	})
}
