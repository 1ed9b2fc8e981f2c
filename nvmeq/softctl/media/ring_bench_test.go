package media

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkRing reads the block device LANEFS_BENCH_DEVICE at random, 32 reads of 4 KiB or four of 1 MiB at once, into memory that is registered or
// not, of huge pages or small ones. cpu-us is the CPU time of the thread that submits, for each read.
func BenchmarkRing(b *testing.B) {
	dev := os.Getenv("LANEFS_BENCH_DEVICE")
	if dev == "" {
		b.Skip("LANEFS_BENCH_DEVICE names no block device; it is only read")
	}
	m, err := Open(dev, Options{BlockSize: BlockSize(dev), ReadOnly: true, Log: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	defer m.Close()
	for _, pages := range []int{unix.MADV_HUGEPAGE, unix.MADV_NOHUGEPAGE} {
		for _, tc := range []struct{ size, batch int }{{4096, 32}, {1 << 20, 4}} {
			for _, registered := range []bool{false, true} {
				name := fmt.Sprintf("%dK/registered=%v/huge=%v", tc.size>>10, registered, pages == unix.MADV_HUGEPAGE)
				b.Run(name, func(b *testing.B) { readRing(b, m, tc.size, tc.batch, pages, registered) })
			}
		}
	}
}

func readRing(b *testing.B, m *Image, size, batch, pages int, registered bool) {
	p, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(b, err)
	defer unix.Munmap(p)
	require.NoError(b, unix.Madvise(p, pages))
	for i := 0; i < len(p); i += 4096 {
		p[i] = 1
	}
	r, err := m.NewRing(batch)
	require.NoError(b, err)
	defer r.Close()
	held := 0
	if registered {
		held, err = r.Hold(p)
		require.NoError(b, err)
	}
	bufs := make([]Buffers, batch)
	cpu := func() int64 {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(unix.RUSAGE_THREAD, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := cpu()
	for b.Loop() {
		for i := range bufs {
			bufs[i].Reset()
			bufs[i].Add(p[i*size:][:size])
			bufs[i].In(held)
			if err := r.Start(i, &bufs[i], rand.Int64N(m.size/int64(size))*int64(size), false, false); err != nil {
				b.Fatal(err)
			}
		}
		if err := r.Submit(); err != nil {
			b.Fatal(err)
		}
		for left := batch; left > 0; {
			if _, err, ok := r.Reap(); err != nil {
				b.Fatal(err)
			} else if ok {
				left--
			} else {
				r.Await()
			}
		}
	}
	b.ReportMetric(float64(cpu()-before)/1e3/float64(b.N*batch), "cpu-us")
	b.SetBytes(int64(size * batch))
}
