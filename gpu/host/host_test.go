package host

import (
	"testing"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/stretchr/testify/require"
)

func TestLaunchAllocatesNothing(t *testing.T) {
	_, s, step, lane := stepper(t)
	args := []uint64{lane, 1, 1}
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}
	allocs := testing.AllocsPerRun(100, func() {
		args[2]++
		if err := s.Launch(step, one, one, args...); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, allocs)
}

// BenchmarkStep is one step of an idle lane: what a call costs.
func BenchmarkStep(b *testing.B) {
	_, s, step, lane := stepper(b)
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}
	b.ReportAllocs()
	args := []uint64{lane, 1, 1}
	for b.Loop() {
		args[2]++
		if err := s.Launch(step, one, one, args...); err != nil {
			b.Fatal(err)
		}
	}
}

// stepper is a lane with empty queues, ready to be stepped.
func stepper(t testing.TB) (*Runtime, gpu.Stream, gpu.Function, uint64) {
	r, err := Open(Options{})
	require.NoError(t, err)
	image, err := kernels.Image(r.Facts().Arch)
	require.NoError(t, err)
	m, err := r.Load(image)
	require.NoError(t, err)
	s, err := r.NewStream()
	require.NoError(t, err)
	mem, err := r.Alloc(gpu.HostMapped, 1<<20)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, mem.Close())
		require.NoError(t, s.Close())
		require.NoError(t, m.Close())
		require.NoError(t, r.Close())
	})
	base := uint64(mem.Addr())
	lane := (*kernels.Lane)(unsafe.Pointer(&mem.Host()[0]))
	*lane = kernels.Lane{
		Magic: kernels.Magic, Version: kernels.Version, Size: kernels.LaneSize, Sqid: 1,
		Sq: base + 0x1000, Cq: base + 0x3000, SqDoorbell: base + 0x800, CqDoorbell: base + 0x804,
		Work: base + 0x4000, Results: base + 0x8000, Cids: base + 0xa000, Prp: base + 0x10000, PrpIova: 0x10000,
		Control: base + 0x400, Status: base + 0x440, Counters: base + 0x480,
		SqSize: 64, CqSize: 64, RingSize: 64, CidCount: 63, PrpStride: 4096, PageSize: 4096,
	}
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}
	reset, err := m.Function(kernels.ResetKernel)
	require.NoError(t, err)
	require.NoError(t, s.Launch(reset, one, one, base, 1))
	status := (*kernels.Status)(unsafe.Pointer(&mem.Host()[0x440]))
	require.Equal(t, kernels.StateReady, status.State)
	step, err := m.Function(kernels.StepKernel)
	require.NoError(t, err)
	return r, s, step, base
}
