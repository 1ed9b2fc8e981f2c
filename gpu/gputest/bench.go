package gputest

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/kernels/kerneltest"
)

// BenchmarkLanes measures lanes alone: what docs/PERFORMANCE.md reports of them. The controller is a kernel on the same
// device, with everything in its memory; or threads of the CPU, with the queues in pinned host memory.
func BenchmarkLanes(b *testing.B, open Open) {
	b.Run("word", func(b *testing.B) { benchmarkWord(b, open) })
	for _, workers := range []struct {
		name string
		team
		total uint64
	}{{"wave", wave, 1 << 20}, {"thread", thread, 1 << 17}} {
		for _, n := range []int{1, 16, 128} {
			for _, depth := range []uint64{64, 128} {
				b.Run(fmt.Sprintf("%s/device/queues=%d/depth=%d", workers.name, n, depth), func(b *testing.B) {
					l := newLoaded(b, open, workers.team, n, gpu.DeviceFine)
					l.rate(b, workers.total, func() { l.selfFed(workers.total, depth, true) })
				})
			}
		}
		for _, n := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/device/rings=%d", workers.name, n), func(b *testing.B) {
				l := newLoaded(b, open, workers.team, n, gpu.DeviceFine)
				l.rate(b, workers.total, func() { l.fed(workers.total, 128) })
			})
		}
		for _, depth := range []uint64{1, 128} {
			b.Run(fmt.Sprintf("%s/cpu/depth=%d", workers.name, depth), func(b *testing.B) {
				total := workers.total
				if depth == 1 {
					total = 1 << 15
				}
				l := newLoaded(b, open, workers.team, 1, gpu.HostCoherent)
				l.rate(b, total, func() {
					go l.serveQueue(0, total)
					l.selfFed(total, depth, false)
				})
			})
		}
	}
}

// rate reports what a run of total commands on each lane makes of a second.
func (l *loaded) rate(b *testing.B, total uint64, run func()) {
	var spent time.Duration
	runs := 0
	for b.Loop() {
		b.StopTimer()
		l.reset()
		b.StartTimer()
		start := time.Now()
		run()
		spent += time.Since(start)
		runs++
	}
	each := spent / time.Duration(runs)
	b.ReportMetric(float64(total)*float64(l.n)/each.Seconds(), "commands/s")
	b.ReportMetric(float64(each.Nanoseconds())/float64(total), "ns/command")
	b.ReportMetric(l.perBell, "SQEs/doorbell")
}

// benchmarkWord is the ceiling of everything that goes to and fro: a word from the CPU to the device and back, through pinned
// memory.
func benchmarkWord(b *testing.B, open Open) {
	l := newLoaded(b, open, thread, 1, gpu.HostCoherent)
	const rounds = 20000
	words := l.queues.Host()
	in, out := (*uint32)(unsafe.Pointer(&words[0])), (*uint32)(unsafe.Pointer(&words[4096]))
	var spent time.Duration
	runs := 0
	for b.Loop() {
		atomic.StoreUint32(in, 0)
		atomic.StoreUint32(out, 0)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			a := uint64(l.queues.Addr())
			l.together(started{kerneltest.EchoKernel, 1, []uint64{a, a + 4096, rounds, l.limit()}})
		}()
		var start time.Time
		for n := uint32(1); n <= rounds; n++ {
			if n == 100 { // it runs
				start = time.Now()
			}
			atomic.StoreUint32(in, n)
			for spins := 0; atomic.LoadUint32(out) != n; spins++ {
				if spins == 1<<32 {
					b.Fatal("the device does not answer")
				}
			}
		}
		spent += time.Since(start)
		runs++
		<-ended
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(runs)/(rounds-100), "ns/round-trip")
}
