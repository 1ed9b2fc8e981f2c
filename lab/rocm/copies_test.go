package rocm_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/gputest"
	"github.com/lanefs/lanefs/kernels"
)

// loaded opens the shim over plain memory with kernels of an image.
func loaded(t *testing.T, image func(arch string) ([]byte, error), cuda string) (gpu.Runtime, gpu.Module) {
	t.Helper()
	rt := device(t)
	if strings.HasPrefix(rt.Facts().Arch, "sm_") {
		t.Skip("over CUDA, " + cuda)
	}
	b, err := image(rt.Facts().Arch)
	require.NoError(t, err)
	m, err := rt.Load(b)
	require.NoError(t, err)
	return rt, m
}

// TestCopiesSeen prints what a kernel sees of a drive's writes into device memory, and a drive of a kernel's.
func TestCopiesSeen(t *testing.T) {
	gputest.Reporting(t)
	rt, m := loaded(t, kernels.Image, "whose memory is one")
	write, err := m.Function(kernels.WritePatternKernel)
	require.NoError(t, err)
	check, err := m.Function(kernels.CheckPatternKernel)
	require.NoError(t, err)
	s, err := rt.NewStream()
	require.NoError(t, err)
	const size = 8192
	memory, err := rt.Alloc(gpu.DeviceVMM, size)
	require.NoError(t, err)
	sums, err := rt.Alloc(gpu.HostCoherent, 4096)
	require.NoError(t, err)
	e, err := memory.Export(gpu.ExportDMABUF)
	require.NoError(t, err)
	drive, err := unix.Mmap(e.FD, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	one := gpu.Dim3{X: 1, Y: 1, Z: 1}

	driveWrites := func(seed uint64) {
		for i := range uint64(size / 8) {
			binary.LittleEndian.PutUint64(drive[8*i:], kernels.Pattern(seed, i))
		}
	}
	kernelSees := func(seed uint64) bool {
		clear(sums.Host()[:16])
		require.NoError(t, s.Launch(check, one, one, uint64(memory.Addr()), size/8, seed, uint64(sums.Addr())))
		require.NoError(t, s.Wait(time.Minute))
		return *(*uint64)(unsafe.Pointer(&sums.Host()[0])) == 0
	}
	driveSees := func(seed uint64) bool {
		for i := range uint64(size / 8) {
			if binary.LittleEndian.Uint64(drive[8*i:]) != kernels.Pattern(seed, i) {
				return false
			}
		}
		return true
	}
	kernelSees(0) // the lines are in L2
	driveWrites(1)
	t.Logf("without a flush: %v", kernelSees(1))
	require.NoError(t, memory.Reach().Keeper.Arrived())
	t.Logf("with one: %v", kernelSees(1))
	driveWrites(2)
	t.Logf("the next write without: %v", kernelSees(2))
	require.NoError(t, memory.Reach().Keeper.Arrived())
	require.NoError(t, s.Launch(write, one, one, uint64(memory.Addr()), size/8, 3))
	require.NoError(t, s.Wait(time.Minute))
	t.Logf("a kernel's write: %v", driveSees(3))
	require.NoError(t, unix.Munmap(drive))
	require.NoError(t, unix.Close(e.FD))
	for _, c := range []interface{ Close() error }{s, memory, sums, m, rt} {
		require.NoError(t, c.Close())
	}
}

// With LANEFS_SHIM_COPIES what a drive writes into device memory is not seen by kernels before the host data path was flushed, which is
// what gpu.Keeper.Arrived does; and a kernel's writes are seen by a drive when it has ended. Without, memory is one.
func TestCopies(t *testing.T) {
	needShim(t)
	said := child(t, "^TestCopiesSeen$", "LANEFS_SHIM_COPIES=1")
	if strings.Contains(said, "--- SKIP") {
		t.Skip("over CUDA, whose memory is one")
	}
	for _, want := range []string{"without a flush: false", "with one: true", "the next write without: false", "a kernel's write: true"} {
		require.Contains(t, said, want)
	}
	require.Contains(t, child(t, "^TestCopiesSeen$"), "without a flush: true")
	require.Contains(t, child(t, "^TestRuntime$", "LANEFS_SHIM_COPIES=1"), "--- PASS: TestRuntime")
}
