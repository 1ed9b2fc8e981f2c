package copyengine

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/cuda"
	"github.com/lanefs/lanefs/gpu/gputest/detached"
	"github.com/lanefs/lanefs/gpu/hip"
)

// BenchmarkPieces copies pieces from pinned memory to random places of the device's, with one wait for all of a batch: by the kernel, and
// by a copy each. From where the kernel is faster gather.go should take it. LANEFS_TEST_GPU says on which device.
func BenchmarkPieces(b *testing.B) {
	var rt gpu.Runtime
	var err error
	switch os.Getenv("LANEFS_TEST_GPU") {
	case "cuda":
		rt, err = cuda.Open(cuda.Options{})
	case "hip":
		rt, err = hip.Open(hip.Options{})
	default:
		rt, err = detached.New(false)
	}
	require.NoError(b, err)
	defer rt.Close()
	const room = 256 << 20
	dev, err := rt.Alloc(gpu.DevicePlain, room)
	require.NoError(b, err)
	defer dev.Close()
	e, err := New(rt)
	require.NoError(b, err)
	require.NoError(b, e.noGather)
	defer e.Close()
	e.gather.after = time.Hour
	host, err := e.Stage(room)
	require.NoError(b, err)
	gather := e.gather
	for _, way := range []string{"kernel", "copies"} {
		for _, c := range []struct{ n, count, at int }{{4096, 1, 1}, {4096, 2, 1}, {4096, 4, 1}, {4096, 16, 1}, {4096, 64, 1}, {4096, 256, 1}, {4096, 1024, 1},
			{65536, 1, 1}, {65536, 4, 1}, {65536, 16, 1}, {65536, 256, 1}, {128 << 10, 16, 1}, {256<<10 - 4, 16, 1}, {256<<10 - 4, 64, 1},
			{4096, 16, 4}, {4096, 64, 4}, {4096, 64, 12}, {65536, 16, 4}, {65536, 16, 12}} {
			b.Run(fmt.Sprintf("%s/%dx%d/threads=%d", way, c.count, c.n, c.at), func(b *testing.B) {
				e.gather = gather
				if way == "copies" {
					e.gather = nil
				}
				defer func() { e.gather = gather }()
				b.SetBytes(int64(c.n * c.count * c.at))
				start := time.Now()
				var all sync.WaitGroup
				for range c.at {
					all.Go(func() {
						for range b.N {
							p, err := e.Pipe()
							if err != nil {
								b.Error(err)
								return
							}
							for range c.count {
								from, to := rand.IntN(room/c.n)*c.n, rand.IntN(room/c.n)*c.n
								_ = p.Write(dev, int64(to), host[from:from+c.n])
							}
							if err := p.Close(); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.ReportMetric(float64(b.N*c.count*c.at)/time.Since(start).Seconds()/1e6, "Mpieces/s")
			})
		}
	}
}
