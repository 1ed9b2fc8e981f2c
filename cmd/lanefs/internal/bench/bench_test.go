package bench

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/nvme"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// open opens a controller in software over a new image of so many bytes.
func open(t *testing.T, size int64, opt softctl.Options) (*controller.Controller, string) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, size))
	cpu, err := host.Open(host.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cpu.Close()) })
	rt := &kinds{Runtime: cpu}
	soft, err := softctl.Open(path, opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, soft.Close()) })
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: soft})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, path
}

// kinds counts what is allocated, by the kind of memory.
type kinds struct {
	gpu.Runtime
	mu   sync.Mutex
	seen map[gpu.MemKind]int // protected by mu
}

func (k *kinds) Alloc(kind gpu.MemKind, size int64) (gpu.Memory, error) {
	k.mu.Lock()
	if k.seen == nil {
		k.seen = map[gpu.MemKind]int{}
	}
	k.seen[kind]++
	k.mu.Unlock()
	return k.Runtime.Alloc(kind, size)
}

// TestModes: each memory mode has what it says in device memory, and nothing else.
func TestModes(t *testing.T) {
	for mode := range controller.MemoryMode(16) {
		c, _ := open(t, 2*mib, softctl.Options{})
		k := c.Runtime().(*kinds)
		clear(k.seen) // the admin queue is in host memory
		j := job()
		j.Mode, j.Reads, j.Verify, j.Count = mode, 100, false, 20
		_, err := Run(nil, c, j, func(Progress) {})
		require.NoError(t, err)
		require.Equal(t, mode&(controller.ModeSQ|controller.ModeData) != 0, k.seen[gpu.DeviceFine] > 0, "mode %d", mode)
		require.Equal(t, mode&(controller.ModeCQ|controller.ModeDoorbell) != 0, k.seen[gpu.DeviceUncached] > 0, "mode %d", mode)
	}
}

// flip changes one bit of a file.
func flip(t *testing.T, path string, at int64) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 1)
	_, err = f.ReadAt(b, at)
	require.NoError(t, err)
	b[0] ^= 1
	_, err = f.WriteAt(b, at)
	require.NoError(t, err)
}

const mib = 1 << 20

func job() Job {
	return Job{NSID: 1, First: 2, Blocks: mib / 512, Block: 4096, Lanes: 2, Depth: 8, Batch: 3, Count: 300, Verify: true, Seed: 5}
}

// TestVerify: what a run writes it finds again, and a bit that changes on the medium between the writing and the check is found where it is.
func TestVerify(t *testing.T) {
	for name, set := range map[string]func(*Job){
		"random":     func(*Job) {},
		"sequential": func(j *Job) { j.Sequential, j.Count = true, 500 },
		"one":        func(j *Job) { j.Batch, j.Depth = 1, 2 },
		"data there": func(j *Job) { j.Mode = 15 },
	} {
		t.Run(name, func(t *testing.T) {
			c, path := open(t, 2*mib, softctl.Options{})
			j := job()
			set(&j)
			r, err := Run(nil, c, j, func(Progress) {})
			require.NoError(t, err)
			require.Equal(t, j.Count, r.Commands())
			require.NotZero(t, r.Checked)
			require.Zero(t, r.Wrong, r.FirstWrong)

			j.Sequential, j.Count = true, 256 // all of the region, so also the block that is changed
			r, err = Run(nil, c, j, func(p Progress) {
				if p.Stage == Checking && p.Done == 0 {
					flip(t, path, 2*512+77*4096+1234)
				}
			})
			require.NoError(t, err)
			require.EqualValues(t, 256, r.Checked)
			require.EqualValues(t, 1, r.Wrong)
			require.Equal(t, "the block at LBA 618: 1 of its 512 words of 8 bytes are not what was written, the first at byte 1232", r.FirstWrong)
		})
	}
}

// TestMixed: reads that are measured are checked too, of a region that was written first; a bit that changes before is found.
func TestMixed(t *testing.T) {
	c, path := open(t, 2*mib, softctl.Options{BlockSize: 4096})
	j := job()
	j.First, j.Blocks, j.Reads, j.Prefill, j.Count, j.Steps = 1, 16, 50, true, 400, true
	r, err := Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.Zero(t, r.Wrong, r.FirstWrong)
	require.Greater(t, r.Read.n, uint64(100))
	require.Greater(t, r.Write.n, uint64(100))
	require.Equal(t, r.Read.n+r.Write.n, r.Parts[3].n, "each command has its steps")
	require.Greater(t, r.Checked, r.Read.n, "what was written is read again, too")

	j.Reads = 100
	r, err = Run(nil, c, j, func(p Progress) {
		if p.Stage == Measuring && p.Done == 0 {
			flip(t, path, 3*4096)
		}
	})
	require.NoError(t, err)
	require.NotZero(t, r.Wrong)
	require.Contains(t, r.FirstWrong, "LBA 3: 1 of its 512 words of 8 bytes are not what was written, the first at byte 0")
}

// TestReadsWriteNothing: the controller counts no write.
func TestReadsWriteNothing(t *testing.T) {
	c, _ := open(t, 2*mib, softctl.Options{})
	j := job()
	j.Reads, j.Verify = 100, false
	r, err := Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.EqualValues(t, 300, r.Read.n)
	require.Zero(t, r.Write.n)
	for _, q := range c.Transport().(*softctl.Controller).Counters() {
		require.Zero(t, q.BytesWritten)
	}
}

// TestShape: queues, depth and batches are as they were asked for. A batch is announced by one doorbell; commands sent one at a time have one each.
func TestShape(t *testing.T) {
	c, _ := open(t, 2*mib, softctl.Options{})
	j := job()
	j.Reads, j.Verify, j.Lanes, j.Depth, j.Queue, j.Batch, j.Count = 100, false, 1, 8, 32, 8, 80
	r, err := Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.Equal(t, [4]int{1, 8, 32, 8}, [4]int{r.Lanes, r.Depth, r.Queue, r.Batch})
	require.EqualValues(t, 10, r.Doorbells)
	j.Batch = 2
	r, err = Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.Equal(t, [4]int{1, 8, 32, 2}, [4]int{r.Lanes, r.Depth, r.Queue, r.Batch})
	require.LessOrEqual(t, r.Doorbells, uint64(40))
	j.Depth, j.Queue, j.Batch = 1, 0, 0
	r, err = Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.Equal(t, [4]int{1, 1, 2, 1}, [4]int{r.Lanes, r.Depth, r.Queue, r.Batch})
	require.EqualValues(t, 80, r.Doorbells)
}

// TestTime: a run ends when its time is over.
func TestTime(t *testing.T) {
	c, _ := open(t, 2*mib, softctl.Options{})
	j := job()
	j.Reads, j.Verify, j.Count, j.Time = 100, false, 0, 200*time.Millisecond
	stop := make(chan struct{})
	late := time.AfterFunc(time.Minute, func() { close(stop) })
	r, err := Run(stop, c, j, func(Progress) {})
	require.True(t, late.Stop(), "it had to be stopped")
	require.NoError(t, err)
	require.NotZero(t, r.Commands())
	require.GreaterOrEqual(t, r.Elapsed, j.Time)
}

// TestSteps: what a controller takes is in the step that waits for it, and in no other.
func TestSteps(t *testing.T) {
	const takes = 20 * time.Millisecond
	c, _ := open(t, 2*mib, softctl.Options{Latency: takes})
	j := job()
	j.Reads, j.Verify, j.Lanes, j.Depth, j.Batch, j.Count, j.Steps = 100, false, 1, 1, 1, 10, true
	r, err := Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	l := NewLine(r.Job)
	l.Set(r)
	require.Len(t, l.Steps, len(StepNames))
	for i, s := range l.Steps {
		require.Equal(t, StepNames[i], s.Step)
		require.EqualValues(t, 10, s.Count)
		require.Equal(t, s.Step == "wait", s.P50 >= takes/2, "%s takes %v", s.Step, s.P50)
	}
}

// TestStop: a run without end ends when it is told to, with what was measured.
func TestStop(t *testing.T) {
	c, _ := open(t, 2*mib, softctl.Options{})
	j := job()
	j.Reads, j.Verify, j.Count = 100, false, 0
	stop := make(chan struct{})
	var once sync.Once
	r, err := Run(stop, c, j, func(p Progress) {
		if p.Commands > 0 {
			once.Do(func() { close(stop) })
		}
	})
	require.NoError(t, err)
	require.NotZero(t, r.Commands())
	require.Less(t, r.Elapsed, time.Minute)
}

// TestCountWithoutEnd: as many commands as a number can say are a limit that is not reached.
func TestCountWithoutEnd(t *testing.T) {
	c, _ := open(t, 2*mib, softctl.Options{})
	j := job()
	j.Reads, j.Verify, j.Count, j.Time = 100, false, math.MaxUint64, 50*time.Millisecond
	r, err := Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.NotZero(t, r.Commands())
	require.Contains(t, fioArgs("/dev/x", 0, mib, Job{Lanes: 2, Block: 4096, Count: math.MaxUint64}), "--number_ios=9223372036854775808")
}

// TestFailed: commands that fail are counted, and enough of them end the run.
func TestFailed(t *testing.T) {
	rules := &softctl.Rules{}
	c, _ := open(t, 2*mib, softctl.Options{Injector: rules})
	rules.Add(softctl.Rule{Range: &[2]uint64{0, 1 << 20}, Do: softctl.Verdict{Status: 0x4281}}) // Unrecovered Read Error, with Do Not Retry
	j := job()
	j.Reads, j.Verify, j.Count, j.Time = 100, false, 0, time.Hour
	r, err := Run(nil, c, j, func(Progress) {})
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.Failed, uint64(MaxErrors))
	require.ErrorContains(t, r.FirstError, "Read")
	require.Less(t, r.Elapsed, time.Hour)
}

// TestFlushFailed: a flush that fails is a command that failed, and what was measured is there.
func TestFlushFailed(t *testing.T) {
	rules := &softctl.Rules{}
	c, _ := open(t, 2*mib, softctl.Options{Injector: rules})
	flush := uint8(nvme.IOFlush)
	rules.Add(softctl.Rule{Opcode: &flush, Do: softctl.Verdict{Status: 0x4280}}) // Write Fault, with Do Not Retry
	for _, reads := range []int{0, 50} {
		j := job()
		j.Reads, j.Count, j.Prefill = reads, 100, reads > 0
		r, err := Run(nil, c, j, func(Progress) {})
		require.NoError(t, err)
		require.EqualValues(t, 100, r.Commands())
		require.EqualValues(t, map[int]int{0: 1, 50: 2}[reads], r.Failed)
		require.ErrorContains(t, r.FirstError, "flush: ")
		require.Positive(t, r.Checked)
		require.Zero(t, r.Wrong)
	}
}

// TestRefused: what cannot be measured is refused with the reason.
func TestRefused(t *testing.T) {
	c, _ := open(t, 2*mib, softctl.Options{MaxTransfer: 64 << 10})
	for want, set := range map[string]func(*Job){
		"want a multiple of the namespace's 512 bytes":         func(j *Job) { j.Block = 100 },
		"smaller than a block":                                 func(j *Job) { j.Blocks = 7 },
		"a queue of 8 entries holds 7 commands":                func(j *Job) { j.Queue = 8 },
		"memory that stays pinned":                             func(j *Job) { j.Lanes, j.Depth = 1024, 16383 },
		"a block of 128 KiB: a command carries 64 KiB at most": func(j *Job) { j.Block = 128 << 10 },
		"namespace 7": func(j *Job) { j.NSID = 7 },
	} {
		j := job()
		set(&j)
		_, err := Run(nil, c, j, func(Progress) {})
		require.ErrorContains(t, err, want)
	}
}

func TestHistogram(t *testing.T) {
	var h, o Histogram
	for d := time.Duration(1); d <= 100_000; d++ {
		if d%2 == 0 {
			h.Add(d)
		} else {
			o.Add(d)
		}
	}
	h.Merge(&o)
	for q, want := range map[float64]float64{.5: 50_000, .9: 90_000, .99: 99_000, .9999: 99_990} {
		got := float64(h.Quantile(q))
		require.GreaterOrEqual(t, got, want)
		require.Less(t, got, want*1.04)
	}
	require.EqualValues(t, 100_000, h.Quantile(1))
	require.Equal(t, Times{100_000, 50_000, 1, h.Quantile(.5), h.Quantile(.9), h.Quantile(.95), h.Quantile(.99), h.Quantile(.999), h.Quantile(.9999), 100_000}, *newTimes(&h))
	var far Histogram
	for d, n := range map[time.Duration]int{1: 50_000, 10: 40_000, 100: 5_000, 1_000: 4_000, 10_000: 900, 100_000: 90, 1_000_000: 10} {
		for range n {
			far.Add(d * time.Microsecond)
		}
	}
	all := newTimes(&far)
	for i, got := range []time.Duration{all.P50, all.P90, all.P95, all.P99, all.P999, all.P9999, all.Most} { // each of another magnitude
		want := time.Duration(math.Pow10(i)) * time.Microsecond
		require.GreaterOrEqual(t, got, want, "quantile %d", i)
		require.Less(t, got, want+want/25, "quantile %d", i)
	}
	for _, d := range []time.Duration{0, 1, 31, 32, 33, 1000, time.Second, 20 * time.Minute} {
		b := histBucket(uint64(d))
		require.Less(t, b, histBuckets)
		if d < time.Minute {
			require.GreaterOrEqual(t, histEnd(b), d)
			require.Less(t, histEnd(b-min(b, 1)), max(d, 1))
		}
	}
}

// TestFio: the figures are those of fio's report, which is cut down from one of version 3.33.
func TestFio(t *testing.T) {
	l := NewLine(job())
	require.NoError(t, l.parseFio([]byte(`fio: a note
{"jobs": [{"error": 0, "read": {"total_ios": 7, "iops": 10.5, "bw_bytes": 43008, "runtime": 500,
 "lat_ns": {"min": 100, "max": 900, "mean": 300.5, "percentile": {"50.000000": 310, "99.990000": 890}}}, "write": {"total_ios": 0}}]}`)))
	require.EqualValues(t, 7, l.Commands)
	require.EqualValues(t, 10.5, l.IOPS)
	require.EqualValues(t, 43008, l.Bandwidth)
	require.Equal(t, 500*time.Millisecond, l.Elapsed)
	require.Equal(t, &Times{Count: 7, Mean: 300, Least: 100, P50: 310, P9999: 890, Most: 900}, l.Read)
	require.Nil(t, l.Write)
	require.ErrorContains(t, l.parseFio([]byte(`{"jobs": []}`)), "0 jobs")
	j := job()
	require.NotContains(t, fioArgs("/dev/x", 0, mib, j), "--readonly")
	j.Reads = 100
	require.Contains(t, fioArgs("/dev/x", 0, mib, j), "--readonly")
	require.Contains(t, fioArgs("/dev/a:b", 0, mib, j), `--filename=/dev/a\:b`)
	for want, set := range map[string]func(*Job){
		"--rw=randread --rwmixread=100 --bs=4096 --iodepth=8 --numjobs=2 --offset=1048576 --size=2097152 --number_ios=150": func(j *Job) {},
		"--rw=read --rwmixread=100 --bs=65536 --iodepth=1 --numjobs=3":                                                     func(j *Job) { j.Sequential, j.Block, j.Depth, j.Lanes = true, 64<<10, 1, 3 },
		"--rw=randrw --rwmixread=70":    func(j *Job) { j.Reads = 70 },
		"--rw=write --rwmixread=0":      func(j *Job) { j.Reads, j.Sequential = 0, true },
		"--time_based --runtime=1500ms": func(j *Job) { j.Time, j.Count = 1500*time.Millisecond, 0 },
	} {
		j := j
		set(&j)
		require.Subset(t, fioArgs("/dev/x", mib, 2*mib, j), append(strings.Fields(want), "--direct=1", "--ioengine=io_uring"))
	}
}

// noKernels loads modules without kernels.
type noKernels struct {
	gpu.Runtime
	loaded, closed int
}

type emptyModule struct {
	gpu.Module
	r *noKernels
}

func (r *noKernels) Load(image []byte) (gpu.Module, error) {
	m, err := r.Runtime.Load(image)
	r.loaded++
	return emptyModule{m, r}, err
}

func (emptyModule) Function(name string) (gpu.Function, error) { return nil, errors.New("no " + name) }
func (m emptyModule) Close() error                             { m.r.closed++; return m.Module.Close() }

// TestNoKernels: without its kernels a run ends with an error, and leaves nothing loaded.
func TestNoKernels(t *testing.T) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	r := &noKernels{Runtime: rt}
	_, err = openBlocks(r, 1)
	require.ErrorContains(t, err, "no lanefs_")
	require.Equal(t, 1, r.loaded)
	require.Equal(t, 1, r.closed)
	require.NoError(t, rt.Close())
}
