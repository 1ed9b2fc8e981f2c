// Package gputest is tests that every gpu.Runtime must pass: Runtime for memory, modules, launches and copies, Lanes for
// the lanes that run on it. gpu/host, gpu/hip and gpu/cuda run both; what differs is only how they are opened.
//
// The lanes' controller is the test itself: queues are plain memory that the CPU reads and writes as a controller would.
package gputest

import (
	"testing"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/stretchr/testify/require"
)

// Open opens the runtime under test. It skips the test, saying why, if the machine has no such device.
type Open func(t testing.TB) gpu.Runtime

// Keep holds the device, and with CUDA its context, open while a suite opens and closes runtimes by the dozen.
func Keep(t testing.TB, open Open) {
	t.Helper()
	r := open(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	t.Logf("%+v", r.Facts())
}

// patience bounds every wait; nothing that works comes near it.
const patience = 2 * time.Minute

var one = gpu.Dim3{X: 1, Y: 1, Z: 1}

// device is a runtime with the kernels loaded and a stream.
type device struct {
	gpu.Runtime
	t      testing.TB
	module gpu.Module
	stream gpu.Stream
}

// start opens a runtime; it is closed when the test ends, and must then have nothing left open.
func start(t testing.TB, open Open) *device {
	t.Helper()
	r := open(t)
	image, err := kernels.Image(r.Facts().Arch)
	require.NoError(t, err)
	m, err := r.Load(image)
	require.NoError(t, err)
	s, err := r.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, m.Close())
		require.NoError(t, r.Close())
	})
	return &device{Runtime: r, t: t, module: m, stream: s}
}

// alloc gives memory that lives as long as the test.
func (d *device) alloc(kind gpu.MemKind, size int64) gpu.Memory {
	d.t.Helper()
	m, err := d.Alloc(kind, size)
	require.NoError(d.t, err, "%s", kind)
	d.t.Cleanup(func() { require.NoError(d.t, m.Close()) })
	return m
}

// launch runs a kernel to its end.
func (d *device) launch(name string, grid, block uint32, args ...uint64) {
	d.t.Helper()
	f, err := d.module.Function(name)
	require.NoError(d.t, err)
	require.NoError(d.t, d.stream.Launch(f, gpu.Dim3{X: grid, Y: 1, Z: 1}, gpu.Dim3{X: block, Y: 1, Z: 1}, args...))
	require.NoError(d.t, d.stream.Wait(patience))
}

// wrongWords is how many of the words at a differ from the pattern, as the device sees them.
func (d *device) wrongWords(a gpu.Addr, words, seed uint64) uint64 {
	d.t.Helper()
	out := d.alloc(gpu.HostMapped, 4096)
	d.launch(kernels.CheckPatternKernel, 4, 64, uint64(a), words, seed, uint64(out.Addr()))
	return words64(out.Host())[0]
}

func (d *device) writePattern(a gpu.Addr, words, seed uint64) {
	d.t.Helper()
	d.launch(kernels.WritePatternKernel, 4, 64, uint64(a), words, seed)
}

// words64 views bytes as 64-bit words.
func words64(b []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
}

// requirePattern checks the words of b on the CPU.
func requirePattern(t testing.TB, b []byte, seed uint64) {
	t.Helper()
	for i, w := range words64(b) {
		if want := kernels.Pattern(seed, uint64(i)); w != want { // require is too slow for a million words
			t.Fatalf("word %d is %#x, not %#x", i, w, want)
		}
	}
}
