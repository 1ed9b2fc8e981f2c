package namespace_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
	"github.com/lanefs/lanefs/blockdev/namespace/namespacetest"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/softctl"
)

// BenchmarkBlockDevice reads a block device at random through lanes, and by pread with O_DIRECT from as many threads as there are requests
// at once. The two take turns, so that what else the machine does meets both: %-of-pread compares the medians of the turns, and CPU time, of which other
// work takes less, is that of a read in the best tenth of them. %-of-pread-together compares with threads that wait for one another after each batch. LANEFS_BENCH_DEVICE names the device, which is only read; without it there is a
// loop device over a file in RAM.
func BenchmarkBlockDevice(b *testing.B) {
	dev := os.Getenv("LANEFS_BENCH_DEVICE")
	if dev == "" {
		dev = loopInRAM(b, 512<<20)
	}
	fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_DIRECT, 0)
	require.NoError(b, err)
	defer unix.Close(fd)
	d := namespacetest.OpenLanes(b, dev, softctl.Options{ReadOnly: true, Queues: 32}, engine.Config{Lanes: 32})
	defer d.Close()
	for _, tc := range []struct{ size, batch, callers int }{{4096, 1, 1}, {4096, 32, 1}, {4096, 1, 2}, {4096, 1, 4}, {4096, 1, 8}, {4096, 1, 32}, {1 << 20, 1, 1}, {1 << 20, 1, 4}, {1 << 20, 4, 1}, {1 << 20, 4, 2}} {
		b.Run(fmt.Sprintf("%dK/batch=%d/callers=%d", tc.size>>10, tc.batch, tc.callers), func(b *testing.B) {
			space := int64(d.Info().Size()) / int64(tc.size)
			var bufs []blockdev.Buffer
			for range tc.callers * tc.batch {
				buf, err := d.Alloc(tc.size)
				require.NoError(b, err)
				defer buf.Release()
				bufs = append(bufs, buf)
			}
			lanes := func(caller, n int) error {
				reqs := make([]*blockdev.Request, tc.batch)
				for i := range reqs {
					reqs[i] = &blockdev.Request{Op: blockdev.OpRead, Bufs: []blockdev.Slice{bufs[caller*tc.batch+i].Slice(0, tc.size)}}
				}
				for ; n > 0; n -= tc.batch {
					for _, r := range reqs {
						r.Off = blockdev.Bytes(rand.Int64N(space) * int64(tc.size))
					}
					if err := d.Do(reqs...); err != nil {
						return err
					}
				}
				return nil
			}
			pread := func(caller, n int) error {
				for p := bufs[caller].Bytes()[:tc.size]; n > 0; n-- {
					if got, err := unix.Pread(fd, p, rand.Int64N(space)*int64(tc.size)); got != tc.size {
						return fmt.Errorf("pread of %d bytes: %d, %v", tc.size, got, err)
					}
				}
				return nil
			}
			// together is pread by as many threads as a batch has requests, each of which begins its next one when all have ended, as requests of a call of Do do.
			together := func(_, n int) error {
				var begin []chan int
				var ended sync.WaitGroup
				errs := make(chan error, tc.batch)
				for i := range tc.batch {
					begin = append(begin, make(chan int))
					go func() {
						var err error
						for n := range begin[i] {
							err = errors.Join(err, pread(i, n))
							ended.Done()
						}
						errs <- err
					}()
				}
				for ; n > 0; n -= tc.batch {
					ended.Add(tc.batch)
					for _, c := range begin {
						c <- 1
					}
					ended.Wait()
				}
				var err error
				for _, c := range begin {
					close(c)
					err = errors.Join(err, <-errs)
				}
				return err
			}
			// The callers stay, as threads of a program do: new ones would have their stacks grow in each turn.
			callers := make([]chan func(), tc.callers*tc.batch)
			for i := range callers {
				callers[i] = make(chan func())
				defer close(callers[i])
				go func() {
					for f := range callers[i] {
						f()
					}
				}()
			}
			turn := func(threads, each int, run func(caller, n int) error) (rate, cpu float64) {
				var all sync.WaitGroup
				all.Add(threads)
				start, used := time.Now(), cpuTime()
				for i := range threads {
					callers[i] <- func() {
						defer all.Done()
						if err := run(i, each); err != nil {
							b.Error(err)
						}
					}
				}
				all.Wait()
				return float64(threads*each*tc.size) / time.Since(start).Seconds() / 1e6, float64(cpuTime()-used) / float64(threads*each)
			}
			var ours, theirs, barred, oursCPU, theirsCPU []float64
			for b.Loop() { // an operation is a turn of each, 32 requests a caller, 256 or 64 MiB at most
				n := min(32*tc.batch*tc.callers, 256, 64<<20/tc.size)
				rate, cpu := turn(tc.callers, n/tc.callers, lanes)
				ours, oursCPU = append(ours, rate), append(oursCPU, cpu)
				rate, cpu = turn(tc.callers*tc.batch, n/tc.callers/tc.batch, pread)
				theirs, theirsCPU = append(theirs, rate), append(theirsCPU, cpu)
				if tc.batch > 1 {
					rate, _ = turn(1, n, together)
					barred = append(barred, rate)
				}
			}
			for _, all := range [][]float64{ours, theirs, barred, oursCPU, theirsCPU} {
				slices.Sort(all)
			}
			if tc.batch > 1 {
				b.ReportMetric(100*ours[len(ours)/2]/barred[len(barred)/2], "%-of-pread-together")
			}
			b.ReportMetric(oursCPU[len(ours)/10], "lanes-cpu-ns")
			b.ReportMetric(theirsCPU[len(theirs)/10], "pread-cpu-ns")
			b.ReportMetric(ours[len(ours)/2], "lanes-MB/s")
			b.ReportMetric(theirs[len(theirs)/2], "pread-MB/s")
			b.ReportMetric(100*ours[len(ours)/2]/theirs[len(theirs)/2], "%-of-pread")
		})
	}
}

// cpuTime is what all threads of the process have taken, in nanoseconds.
func cpuTime() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return ts.Nano()
}

// loopInRAM is a block device over a file in RAM, filled.
func loopInRAM(b *testing.B, size int64) string {
	if os.Getuid() != 0 {
		b.Skip("SKIPPED: loop devices need root")
	}
	f, err := os.CreateTemp("/dev/shm", "lanefs-bench")
	require.NoError(b, err)
	b.Cleanup(func() { os.Remove(f.Name()) })
	for part := make([]byte, 1<<20); size > 0; size -= int64(len(part)) {
		_, err = f.Write(part)
		require.NoError(b, err)
	}
	require.NoError(b, f.Close())
	dev, _ := looptest.Attach(b, f.Name())
	return dev
}
