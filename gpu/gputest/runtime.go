package gputest

import (
	"sync"
	"testing"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/kernels/kerneltest"
	"github.com/stretchr/testify/require"
)

// reachable are the kinds that kernels can use.
var reachable = []gpu.MemKind{gpu.HostMapped, gpu.HostCoherent, gpu.HostPinned, gpu.DeviceFine, gpu.DeviceCoarse,
	gpu.DeviceUncached, gpu.DeviceVMM, gpu.DevicePlain}

// lacks says whether the device has no such memory: VMM memory needs a granularity.
func (d *device) lacks(kind gpu.MemKind) bool {
	return kind == gpu.DeviceVMM && d.Facts().Granularity == 0
}

// Runtime runs the suite of gpu.Runtime.
func Runtime(t *testing.T, open Open) {
	t.Run("Facts", func(t *testing.T) { testFacts(start(t, open)) })
	t.Run("Kinds", func(t *testing.T) { testKinds(t, start(t, open)) })
	t.Run("BadSizes", func(t *testing.T) { testBadSizes(t, start(t, open)) })
	t.Run("Launch", func(t *testing.T) { testLaunch(t, start(t, open)) })
	t.Run("Modules", func(t *testing.T) { testModules(t, start(t, open)) })
	t.Run("CopyAndFill", func(t *testing.T) { testCopyAndFill(t, start(t, open)) })
	t.Run("Gather", func(t *testing.T) { testGather(t, start(t, open)) })
	t.Run("Range", func(t *testing.T) { testRange(t, start(t, open)) })
	t.Run("Share", func(t *testing.T) { testShare(t, start(t, open)) })
	t.Run("Register", func(t *testing.T) { testRegister(t, start(t, open)) })
	t.Run("RegisterFile", func(t *testing.T) { testRegisterFile(t, start(t, open)) })
	t.Run("Closed", func(t *testing.T) { testClosed(t, open) })
	t.Run("Concurrent", func(t *testing.T) { testConcurrent(t, start(t, open)) })
}

func testFacts(d *device) {
	f := d.Facts()
	require.NotEmpty(d.t, d.Name())
	require.NotEmpty(d.t, f.Name)
	require.NotEmpty(d.t, f.Arch)
	require.NotEmpty(d.t, f.Runtime)
	require.Positive(d.t, f.Memory)
	require.Positive(d.t, f.WaveSize)
	require.Positive(d.t, f.Units)
	if f.Granularity != 0 {
		require.GreaterOrEqual(d.t, f.Granularity, int64(4096))
		require.Zero(d.t, f.Granularity&(f.Granularity-1), "granularity %d is no power of two", f.Granularity)
	}
	require.NotEmpty(d.t, f.Exports)
}

// Kernels and CPU see the same bytes in every kind, each what the other wrote.
func testKinds(t *testing.T, d *device) {
	const size = 3 << 20
	for kind := gpu.HostMapped; kind <= gpu.DevicePlain; kind++ {
		if d.lacks(kind) {
			_, err := d.Alloc(kind, size)
			require.ErrorContains(t, err, "virtual memory management")
			continue
		}
		m := d.alloc(kind, size)
		require.Equal(t, kind, m.Kind())
		require.GreaterOrEqual(t, m.Size(), int64(size))
		require.NotZero(t, m.Addr())
		require.Zero(t, m.Addr()%4096, "%s memory is page-aligned", kind)
		if !kind.Device() || d.Facts().LargeBAR && kind != gpu.DeviceVMM {
			require.Len(t, m.Host(), int(m.Size()), "%s memory has a CPU view", kind)
		}
		owner := m.Reach().Owner
		require.NotZero(t, owner, "%s memory belongs to somebody", kind)
		if k := m.Reach().Keeper; k != nil {
			require.NoError(t, k.Revoked())
			require.NoError(t, k.Arrived())
			require.Equal(t, k, m.Reach().Keeper, "of all memory on the same terms, so that it is asked once")
		}
		if !kind.Device() {
			require.True(t, owner.Outlives(), "%s memory is there without the device", kind)
		}
		if kind == gpu.HostPinned {
			require.True(t, owner.Pinnable(), "other devices reach %s memory by its pages", kind)
		}
	}
	for _, kind := range reachable {
		if d.lacks(kind) {
			continue
		}
		m := d.alloc(kind, size)
		d.writePattern(m.Addr(), size/8, uint64(kind))
		require.Zero(t, d.wrongWords(m.Addr(), size/8, uint64(kind)), "%s", kind)
		require.NotZero(t, d.wrongWords(m.Addr(), size/8, 99), "the check of %s memory finds a wrong pattern", kind)
		if b := m.Host(); b != nil {
			requirePattern(t, b[:size], uint64(kind))
			words64(b)[size/8-1]++
			if k := m.Reach().Keeper; k != nil {
				require.NoError(t, k.Arrived())
			}
			require.Equal(t, uint64(1), d.wrongWords(m.Addr(), size/8, uint64(kind)), "the CPU's store to %s memory", kind)
		}
	}
}

func testBadSizes(t *testing.T, d *device) {
	for _, size := range []int64{0, -1, -4096} {
		for kind := gpu.HostMapped; kind <= gpu.DevicePlain; kind++ {
			_, err := d.Alloc(kind, size)
			require.Error(t, err, "%d bytes of %s", size, kind)
		}
	}
	for _, kind := range []gpu.MemKind{0, gpu.DevicePlain + 1, 255} {
		_, err := d.Alloc(kind, 4096)
		require.Error(t, err)
	}
	_, err := d.Alloc(gpu.DevicePlain, d.Facts().Memory+1<<30)
	require.ErrorContains(t, err, "memory")
	_, err = d.Reserve(1<<20, 1<<10)
	require.Error(t, err)
	_, err = d.Reserve(-1, 1<<20)
	require.Error(t, err)
	r, err := d.Reserve(0, 1<<30)
	if d.lacks(gpu.DeviceVMM) {
		require.ErrorContains(t, err, "virtual memory management")
		return
	}
	require.NoError(t, err, "an empty range may grow later")
	require.NoError(t, r.Close())
}

// Two images that are loaded at once are two modules.
func testModules(t *testing.T, d *device) {
	image, err := kerneltest.Image(d.Facts().Arch)
	require.NoError(t, err)
	for range 3 {
		m, err := d.Load(image)
		require.NoError(t, err)
		_, err = m.Function(kerneltest.EchoKernel)
		require.NoError(t, err)
		_, err = d.module.Function(kerneltest.EchoKernel)
		require.Error(t, err, "it is in the other module")
		d.launch(kernels.WritePatternKernel, 1, 1, uint64(d.alloc(gpu.HostMapped, 4096).Addr()), 8, 1)
		require.NoError(t, m.Close())
	}
}

// Every thread of every shape runs exactly once: each word is written by one.
func testLaunch(t *testing.T, d *device) {
	m := d.alloc(gpu.HostMapped, 1<<16)
	for _, shape := range [][2]uint32{{1, 1}, {1, 64}, {7, 33}, {64, 1}, {100, 256}} {
		clear(m.Host())
		d.launch(kernels.WritePatternKernel, shape[0], shape[1], uint64(m.Addr()), 1<<13, 5)
		requirePattern(t, m.Host()[:1<<16], 5)
	}
	_, err := d.module.Function("lanefs_no_such_kernel")
	require.ErrorContains(t, err, "lanefs_no_such_kernel")
	f, err := d.module.Function(kernels.StepKernel)
	require.NoError(t, err)
	require.Equal(t, kernels.StepKernel, f.Name())
	require.Error(t, d.stream.Launch(f, gpu.Dim3{}, one, 0, 0, 0), "an empty grid")
	for _, image := range [][]byte{nil, []byte("not an image"), make([]byte, 4096)} {
		_, err := d.Load(image)
		require.Error(t, err)
	}
}

func testCopyAndFill(t *testing.T, d *device) {
	const size = 1 << 20
	host := d.alloc(gpu.HostMapped, size)
	for _, kind := range reachable {
		if d.lacks(kind) {
			continue
		}
		dev := d.alloc(kind, size)
		d.writePattern(dev.Addr(), size/8, 3)
		require.NoError(t, d.stream.Copy(host.Addr(), dev.Addr(), size))
		require.NoError(t, d.stream.Wait(patience))
		requirePattern(t, host.Host()[:size], 3)

		require.NoError(t, d.stream.Fill(dev.Addr()+100, 0xa5, 1000))
		require.NoError(t, d.stream.Fill(dev.Addr()+1100, 0, 0))
		require.NoError(t, d.stream.Copy(host.Addr()+99, dev.Addr()+99, 1002))
		require.NoError(t, d.stream.Wait(patience))
		want := make([]byte, size)
		for i := range words64(want) {
			words64(want)[i] = kernels.Pattern(3, uint64(i))
		}
		for i := 100; i < 1100; i++ {
			want[i] = 0xa5
		}
		require.Equal(t, want[:2048], host.Host()[:2048], "%s", kind)
	}
	done, err := d.stream.Done()
	require.NoError(t, err)
	require.True(t, done)
}

// After Close everything answers with an error, a second Close included.
func testClosed(t *testing.T, open Open) {
	d := &device{Runtime: open(t), t: t}
	image, err := kernels.Image(d.Facts().Arch)
	require.NoError(t, err)
	module, err := d.Load(image)
	require.NoError(t, err)
	f, err := module.Function(kernels.StepKernel)
	require.NoError(t, err)
	stream, err := d.NewStream()
	require.NoError(t, err)
	m, err := d.Alloc(gpu.DevicePlain, 4096)
	require.NoError(t, err)

	require.NoError(t, m.Close())
	require.Error(t, m.Close())
	_, err = m.Export(d.Facts().Exports[0])
	require.Error(t, err)
	require.Nil(t, m.Host())
	require.NoError(t, module.Close())
	require.Error(t, module.Close())
	_, err = module.Function(kernels.StepKernel)
	require.Error(t, err)
	require.Error(t, stream.Launch(f, one, one, 0, 0, 0))
	require.NoError(t, stream.Close())
	require.Error(t, stream.Close())
	require.Error(t, stream.Launch(f, one, one, 0, 0, 0))
	require.Error(t, stream.Wait(0))
	require.NoError(t, d.Close())
	require.Error(t, d.Close())
	_, err = d.Alloc(gpu.HostPlain, 4096)
	require.Error(t, err)
	_, err = d.NewStream()
	require.Error(t, err)
}

// A Runtime's methods may be called from any goroutine.
func testConcurrent(t *testing.T, d *device) {
	var g sync.WaitGroup
	for seed := range uint64(4) {
		g.Go(func() {
			s, err := d.NewStream()
			if !noError(t, err) {
				return
			}
			f, err := d.module.Function(kernels.WritePatternKernel)
			noError(t, err)
			for i := range uint64(20) {
				a, err := d.Alloc(gpu.DeviceFine, 1<<16)
				if !noError(t, err) {
					break
				}
				b, err := d.Alloc(gpu.HostMapped, 1<<16)
				if !noError(t, err) {
					break
				}
				noError(t, s.Launch(f, one, one, uint64(a.Addr()), 1<<13, seed<<32|i))
				noError(t, s.Copy(b.Addr(), a.Addr(), 1<<16))
				noError(t, s.Wait(patience))
				if words64(b.Host())[8191] != kernels.Pattern(seed<<32|i, 8191) {
					t.Errorf("stream %d, round %d: wrong bytes", seed, i)
				}
				noError(t, a.Close())
				noError(t, b.Close())
			}
			noError(t, s.Close())
		})
	}
	g.Wait()
}

// noError is require.NoError for goroutines that are not the test's.
func noError(t *testing.T, err error) bool {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	return err == nil
}
