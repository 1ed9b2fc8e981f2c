package gputest

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
)

// One launch copies pieces of all lengths and alignments into device memory, and back out of it, and touches nothing beside them.
func testGather(t *testing.T, d *device) {
	require.EqualValues(t, kernels.GatherPieceSize, unsafe.Sizeof(kernels.GatherPiece{}))
	const slot, count = 10 << 10, 300
	wave := uint32(d.Facts().WaveSize)
	host, back := d.alloc(gpu.HostMapped, slot*count), d.alloc(gpu.HostPinned, slot*count)
	dev, list := d.alloc(gpu.DevicePlain, slot*count), d.alloc(gpu.HostMapped, 2*count*kernels.GatherPieceSize)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range host.Host() {
		host.Host()[i] = byte(r.Uint32())
	}
	for i := range back.Host() {
		back.Host()[i] = 0xa5
	}
	want := bytes.Clone(back.Host())
	pieces := unsafe.Slice((*kernels.GatherPiece)(unsafe.Pointer(&list.Host()[0])), 2*count)
	lengths := []uint64{0, 1, 3, 15, 16, 17, 511, 512, 4095, 4096, 4097, 8192, 8209}
	for i := range uint64(count) {
		n, at := lengths[i%uint64(len(lengths))], i*slot
		from, mid, to := at+r.Uint64N(64), at+r.Uint64N(64), at+r.Uint64N(64)
		if i%3 == 0 { // all aligned alike, as most are
			mid, to = from, from
		}
		pieces[i] = kernels.GatherPiece{Dst: uint64(dev.Addr()) + mid, Src: uint64(host.Addr()) + from, Bytes: n}
		pieces[count+i] = kernels.GatherPiece{Dst: uint64(back.Addr()) + to, Src: uint64(dev.Addr()) + mid, Bytes: n}
		copy(want[to:to+n], host.Host()[from:from+n])
	}
	for _, grid := range []uint32{1, 8} {
		for i := range back.Host() {
			back.Host()[i] = 0xa5
		}
		d.launch(kernels.GatherKernel, grid, 2*wave, uint64(list.Addr()), count)
		d.launch(kernels.GatherKernel, grid, 2*wave, uint64(list.Addr())+count*kernels.GatherPieceSize, count)
		require.True(t, bytes.Equal(want, back.Host()), "%d blocks", grid)
	}
	d.launch(kernels.GatherKernel, 1, wave, uint64(list.Addr()), 0)
}
