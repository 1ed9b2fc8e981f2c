package host

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
)

// testBank is a bank in ordinary memory: its DMA-BUF is a memfd that says it is one. The lab has a real one.
func testBank(t testing.TB, n int64) *Bank {
	fd, err := newMemFD("bank", n)
	require.NoError(t, err)
	b, err := mapNew(n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unmap(b); unix.Close(fd) })
	return &Bank{Name: "0000:00:04.0", Bytes: b, DMABUF: gpu.Export{FD: fd, Size: n, Kind: gpu.ExportDMABUF}}
}

func TestBank(t *testing.T) {
	bank := testBank(t, 8<<20)
	r, err := Open(Options{Bank: bank})
	require.NoError(t, err)
	require.Equal(t, int64(8<<20), r.Facts().Memory)
	require.Equal(t, []gpu.ExportKind{gpu.ExportDMABUF}, r.Facts().Exports)

	bank.Bytes[4096] = 9
	a, err := r.Alloc(gpu.DeviceFine, 4096)
	require.NoError(t, err)
	b, err := r.Alloc(gpu.DeviceUncached, 5000)
	require.NoError(t, err)
	require.Zero(t, b.Host()[0], "fresh memory is clear")
	require.Len(t, b.Host(), 5000)
	b.Host()[4999] = 7
	require.Equal(t, byte(7), bank.Bytes[4096+4999], "it is the bank's memory")

	e, err := b.Export(gpu.ExportDMABUF)
	require.NoError(t, err)
	require.Equal(t, int64(4096), e.Offset, "an export says where in the bank it begins")
	require.Equal(t, int64(5000), e.Size)
	require.NoError(t, unix.Close(e.FD))
	_, err = b.Export(gpu.ExportMemFD)
	require.ErrorContains(t, err, "device memory is in 0000:00:04.0, which exports as DMA-BUF only")

	v, err := r.Reserve(1, 4<<20)
	require.NoError(t, err)
	require.Equal(t, int64(2<<20), v.Size())
	require.NoError(t, v.Grow(4<<20))
	require.Equal(t, int64(4<<20), v.Size())
	require.Error(t, v.Grow(6<<20))
	_, err = r.Alloc(gpu.DeviceFine, 4<<20)
	require.ErrorContains(t, err, "out of device memory")
	_, err = r.Alloc(gpu.DeviceFine, 3<<20)
	require.ErrorContains(t, err, "in one piece")

	require.NoError(t, a.Close())
	a, err = r.Alloc(gpu.DeviceCoarse, 4096)
	require.NoError(t, err)
	require.Equal(t, a.Addr(), gpu.Addr(b.Addr()-4096), "the first gap is used again")
	h, err := r.Alloc(gpu.HostMapped, 16<<20)
	require.NoError(t, err, "host memory is not the bank's")
	for _, m := range []gpu.Memory{h, a, b, v} {
		require.NoError(t, m.Close())
	}
	require.Empty(t, r.bank.taken)
	require.NoError(t, r.Close())

	_, err = Open(Options{Bank: &Bank{Name: "x", Bytes: bank.Bytes[:100], DMABUF: bank.DMABUF}})
	require.ErrorContains(t, err, "want whole pages")
	_, err = Open(Options{Bank: &Bank{Name: "x", Bytes: bank.Bytes[:4096], DMABUF: bank.DMABUF}})
	require.ErrorContains(t, err, "a DMA-BUF of 8388608")
}

// Copies and fills know the pieces of a bank, not the bank.
func TestBankPieces(t *testing.T) {
	r, err := Open(Options{Bank: testBank(t, 64<<20)})
	require.NoError(t, err)
	m, err := r.Alloc(gpu.DeviceFine, 1<<20)
	require.NoError(t, err)
	s, err := r.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Fill(m.Addr(), 0xa5, 1<<20))
	require.Equal(t, byte(0xa5), m.Host()[1<<20-1])
	require.Error(t, s.Fill(m.Addr()+1, 0, 1<<20), "beyond the piece, though inside the bank")
	require.NoError(t, s.Close())
	require.NoError(t, m.Close())
	require.NoError(t, r.Close())
}
