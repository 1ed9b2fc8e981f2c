package engine_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/internal/fill"
	"github.com/lanefs/lanefs/nvmeq/internal/testrig"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// onDevice is a rig whose data is in device memory, with what a test needs to run kernels over it.
type onDevice struct {
	*rig
	module gpu.Module
	stream gpu.Stream
	out    gpu.Memory
}

func newOnDevice(t testing.TB, so softctl.Options, ec engine.Config) *onDevice {
	t.Helper()
	b, cfg, _ := testrig.Intercept(t, so)
	var err error
	cfg.Placement, err = controller.ModeData.Placement()
	require.NoError(t, err)
	cfg.Timeout = 0
	d := &onDevice{rig: &rig{Rig: &testrig.Rig{Runtime: cfg.Runtime, Soft: b.Controller, Block: 512, Threads: so.Threads > 0}}}
	image, err := kernels.Image(d.Runtime.Facts().Arch)
	require.NoError(t, err)
	d.module, err = d.Runtime.Load(image)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.module.Close()) })
	d.stream, err = d.Runtime.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.stream.Close()) })
	d.out, err = d.Runtime.Alloc(gpu.HostMapped, 4096)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.out.Close()) })
	d.Controller, err = controller.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Controller.Close()) })
	ec.Team = testrig.Team(t)
	d.Engine, err = engine.New(d.Controller, ec)
	require.NoError(t, err)
	return d
}

func (d *onDevice) launch(t testing.TB, name string, args ...uint64) {
	t.Helper()
	f, err := d.module.Function(name)
	require.NoError(t, err)
	require.NoError(t, d.stream.Launch(f, gpu.Dim3{X: 8, Y: 1, Z: 1}, gpu.Dim3{X: 64, Y: 1, Z: 1}, args...))
	require.NoError(t, d.stream.Wait(time.Minute))
}

// wrong is how many of n bytes at off of c differ from the pattern, as a kernel on the device counts them, and their sum.
func (d *onDevice) wrong(t testing.TB, c *controller.Chunk, off, n int64, seed uint64) (wrong, sum uint64) {
	t.Helper()
	clear(d.out.Host())
	d.launch(t, kernels.CheckPatternKernel, uint64(c.Addr())+uint64(off), uint64(n/8), seed, uint64(d.out.Addr()))
	out := unsafe.Slice((*uint64)(unsafe.Pointer(&d.out.Host()[0])), 2)
	return out[0], out[1]
}

// pattern is what the kernels write, made on the CPU.
func pattern(n int64, seed uint64) (b []byte, sum uint64) {
	b = make([]byte, n)
	for i := range n / 8 {
		w := kernels.Pattern(seed, uint64(i))
		*(*uint64)(unsafe.Pointer(&b[8*i])) = w
		sum += w
	}
	return b, sum
}

// TestDeviceData: what is read from the image is in the device's memory, where a kernel computes its checksum, and what a
// kernel has written there reaches the image. The CPU looks at the image, never at the data memory.
func TestDeviceData(t *testing.T) {
	for name, ec := range map[string]engine.Config{"resident or stepped": {Lanes: 4}, "batch": {Lanes: 4, Batch: true}} {
		t.Run(name, func(t *testing.T) {
			d := newOnDevice(t, softctl.Options{}, ec)
			const size = 4 << 20
			c := d.Chunk(t, size)
			require.Equal(t, d.Runtime.Facts().LargeBAR, !c.Mirrored())
			want, sum := pattern(size, 7)
			f, err := os.OpenFile(d.Soft.Name(), os.O_RDWR, 0)
			require.NoError(t, err)
			defer f.Close()
			_, err = f.WriteAt(want, 0)
			require.NoError(t, err)

			all := func(op nvme.Opcode, lba uint64) {
				var cmds []engine.Command
				for off := int64(0); off < size; off += 64 << 10 {
					cmds = append(cmds, d.RW(op, lba+uint64(off)/512, c, off, 64<<10))
				}
				require.NoError(t, d.Engine.Spread(cmds))
			}
			d.launch(t, kernels.WritePatternKernel, uint64(c.Addr()), size/8, 99)
			all(nvme.IORead, 0)
			wrong, got := d.wrong(t, c, 0, size, 7)
			require.Zero(t, wrong)
			require.Equal(t, sum, got)
			wrong, _ = d.wrong(t, c, 0, size, 8)
			require.NotZero(t, wrong, "the check finds a wrong pattern")

			d.launch(t, kernels.WritePatternKernel, uint64(c.Addr()), size/8, 21)
			all(nvme.IOWrite, 8<<20/512)
			back := make([]byte, size)
			_, err = f.ReadAt(back, 8<<20)
			require.NoError(t, err)
			want, _ = pattern(size, 21)
			require.True(t, bytes.Equal(want, back))
			d.sameCounters(t)
		})
	}
}

// large is a further image, whose namespace is the second. Each part of it has a pattern of its own.
func large(t testing.TB, size, part int64) (f *os.File, so softctl.Options) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "large"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	for off := int64(0); off < size; off += part {
		b, _ := pattern(part, uint64(off/part))
		_, err = f.WriteAt(b, off)
		require.NoError(t, err)
	}
	return f, softctl.Options{Images: []string{f.Name()}}
}

// TestImagePages reads an image again and again, until the device's copies come from the image's own pages, and again
// after those pages were written to, taken out of the image, and replaced.
func TestImagePages(t *testing.T) {
	const size, part, each = 72 << 20, 8 << 20, 1 << 20
	const chunk = 32 << 20 // of softctl/media
	_, so := large(t, size, part)
	d := newOnDevice(t, so, engine.Config{Lanes: 4})
	pinned := int64(size / chunk * chunk)
	if d.Runtime.Facts().LargeBAR {
		pinned = 0 // the CPU addresses this device's memory: nothing is copied for it
	}
	c := d.Chunk(t, part)
	do := func(op nvme.Opcode, at int64) {
		t.Helper()
		var cmds []engine.Command
		for off := int64(0); off < part; off += each {
			cmd := d.RW(op, uint64(at+off)/512, c, off, each)
			cmd.NSID = 2
			cmds = append(cmds, cmd)
		}
		require.NoError(t, d.Engine.Spread(cmds))
	}
	want := map[int64]uint64{}
	for at := int64(0); at < size; at += part {
		want[at] = uint64(at / part)
	}
	pass := func() {
		t.Helper()
		for at := int64(0); at < size; at += part {
			do(nvme.IORead, at)
			wrong, _ := d.wrong(t, c, 0, part, want[at])
			require.Zero(t, wrong, "of the words from %d on", at)
		}
	}
	write := func(at int64, seed uint64) {
		t.Helper()
		d.launch(t, kernels.WritePatternKernel, uint64(c.Addr()), part/8, seed)
		do(nvme.IOWrite, at)
		want[at] = seed
	}
	settled := func() { // pinning goes on beside the reads
		t.Helper()
		require.Eventually(t, func() bool { return d.Soft.Pinned() == pinned }, time.Minute, time.Millisecond)
	}
	for range 3 {
		pass()
	}
	settled()
	write(part, 91)
	pass()
	require.Equal(t, pinned, d.Soft.Pinned())
	require.NoError(t, d.Engine.Do(0, []engine.Command{{Op: nvme.IODSM, NSID: 2, Ranges: []nvme.Range{{SLBA: 2 * part / 512, NLB: part / 512}}}}))
	require.Equal(t, max(pinned-chunk, 0), d.Soft.Pinned(), "of the chunk pages are gone")
	write(2*part, 92)
	for range 3 {
		pass()
	}
	settled()
	pass()
}

// TestLoad keeps every lane full for a while, LANEFS_TEST_LOAD or half a second, with batches of all sizes, and then
// counts: every command was answered exactly once, and lanes and controller agree about how many there were. An answer
// to a tag that is not in use is a panic of the engine's.
func TestLoad(t *testing.T) {
	duration := 500 * time.Millisecond
	if s := os.Getenv("LANEFS_TEST_LOAD"); s != "" {
		var err error
		duration, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	r := newRig(t, softctl.Options{OutOfOrder: true, Seed: 11}, engine.Config{Lanes: 8, Depth: 64})
	var done sync.WaitGroup
	var mu sync.Mutex
	total := uint64(0)
	end := time.Now().Add(duration)
	for w := range 12 {
		c := r.Chunk(t, 128*4096)
		done.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 3))
			sent := uint64(0)
			for time.Now().Before(end) {
				cmds := make([]engine.Command, 1+rng.IntN(128))
				for i := range cmds {
					op := nvme.IORead
					if rng.IntN(2) == 0 {
						op = nvme.IOWrite
					}
					cmds[i] = r.RW(op, uint64(rng.IntN(4000))*8, c, int64(i)*4096, 4096)
				}
				var err error
				if rng.IntN(2) == 0 {
					err = r.Engine.Do(rng.IntN(8), cmds)
				} else {
					err = r.Engine.Spread(cmds)
				}
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
					return
				}
				sent += uint64(len(cmds))
				if rng.IntN(200) == 0 {
					time.Sleep(5 * time.Millisecond) // long enough for lanes to park
				}
			}
			mu.Lock()
			total += sent
			mu.Unlock()
		})
	}
	done.Wait()
	r.sameCounters(t)
	var commands, completions uint64
	for _, s := range r.Engine.Stats() {
		require.Zero(t, s.Timeouts+s.Late+s.Spurious+s.Rejected+s.Errors, "lane %d", s.Lane)
		commands += s.Commands
		completions += s.Completions
	}
	require.Equal(t, total, commands)
	require.Equal(t, total, completions)
	t.Logf("%d commands in %v on %s, each answered once", total, duration, r.Runtime.Facts().Name)
}

// BenchmarkDevice is what docs/PERFORMANCE.md reports of lanes on a device: see there.
func BenchmarkDevice(b *testing.B) {
	b.Run("copy", func(b *testing.B) { // the ceiling: pinned host memory to the device, in one piece
		d := newOnDevice(b, softctl.Options{}, engine.Config{Lanes: 1})
		const size = 256 << 20
		h, err := d.Runtime.Alloc(gpu.HostMapped, size)
		require.NoError(b, err)
		dev, err := d.Runtime.Alloc(gpu.DeviceFine, size)
		require.NoError(b, err)
		fill.Fill(h.Host(), 1)
		b.SetBytes(size)
		for b.Loop() {
			require.NoError(b, d.stream.Copy(dev.Addr(), h.Addr(), size))
			require.NoError(b, d.stream.Wait(time.Minute))
		}
		require.NoError(b, h.Close())
		require.NoError(b, dev.Close())
	})
	for _, each := range []int64{1 << 20, 4 << 20} {
		b.Run(fmt.Sprintf("image to device, %d MiB a command", each>>20), func(b *testing.B) {
			const size = 1 << 30
			f, so := large(b, size, 16<<20)
			so.Queues, so.MaxTransfer = 16, int(each)
			d := newOnDevice(b, so, engine.Config{Lanes: 16, MaxTransfer: each})
			c := d.Chunk(b, size)
			var cmds []engine.Command
			for off := int64(0); off < size; off += each {
				cmd := d.RW(nvme.IORead, uint64(off)/512, c, off, each)
				cmd.NSID = 2
				cmds = append(cmds, cmd)
			}
			// The first time the image goes through the stages, the second time its pages are pinned beside that, then they are there.
			var before [2]float64
			for i := range before {
				start := time.Now()
				require.NoError(b, d.Engine.Spread(cmds))
				before[i] = size / time.Since(start).Seconds() / 1e6
			}
			if !d.Runtime.Facts().LargeBAR { // else the CPU addresses this device's memory: nothing is copied for it
				require.Eventually(b, func() bool { return d.Soft.Pinned() == size }, time.Minute, time.Millisecond, "of %s", f.Name())
			}
			b.SetBytes(size)
			for b.Loop() {
				require.NoError(b, d.Engine.Spread(cmds))
			}
			b.ReportMetric(before[0], "first-MB/s")
			b.ReportMetric(before[1], "pinning-MB/s")
		})
	}
	b.Run("one command", func(b *testing.B) { // request to completion at depth 1, data and queues in host memory
		r := newRig(b, softctl.Options{}, engine.Config{Lanes: 1})
		c := r.Chunk(b, 1<<20)
		cmds := []engine.Command{r.RW(nvme.IORead, 0, c, 0, 512)}
		for b.Loop() {
			require.NoError(b, r.Engine.Do(0, cmds))
		}
	})
	b.Run("batch of 100", func(b *testing.B) {
		r := newRig(b, softctl.Options{}, engine.Config{Lanes: 1})
		c := r.Chunk(b, 1<<20)
		cmds := make([]engine.Command, 100)
		for i := range cmds {
			cmds[i] = r.RW(nvme.IORead, uint64(i)*8, c, int64(i)*4096, 512)
		}
		for b.Loop() {
			require.NoError(b, r.Engine.Do(0, cmds))
		}
		b.ReportMetric(float64(b.N)*100/b.Elapsed().Seconds(), "commands/s")
	})
}
