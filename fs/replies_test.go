//go:build !race

// The race detector makes a minute of it; it runs without on both transports (make test over /dev/fuse).

package fs

import (
	"os"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// heapInUse is what the Go heap has of the system's memory.
func heapInUse() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}

// TestReadsOfAllSizesTakeLittleMemory reads 1 to 256 pages at a time, by several threads.
func TestReadsOfAllSizesTakeLittleMemory(t *testing.T) {
	for name, way := range map[string]IOUring{"fuse": IOUringOff, "io_uring": IOUringAuto} {
		t.Run(name, func(t *testing.T) { readAllSizes(t, way) })
	}
}

func readAllSizes(t *testing.T, way IOUring) {
	m := newMount(t, Options{IOUring: way})
	require.NoError(t, os.WriteFile(m.path("file"), make([]byte, maxRequest), 0o600))
	takesLittleMemory(t, func() { readBySeveral(t, m) })
}

// takesLittleMemory fails if the Go heap takes 64 MiB more while f runs.
func takesLittleMemory(t *testing.T, f func()) {
	const limit = 64 << 20
	before := liveHeap()
	var most atomic.Int64
	stop, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				most.Store(max(most.Load(), heapInUse()-before))
			}
		}
	}()
	f()
	close(stop)
	<-sampled
	t.Logf("%d MiB more at most", most.Load()>>20)
	require.Less(t, most.Load(), int64(limit))
}

func readBySeveral(t *testing.T, m *mounted) {
	const readers, rounds, page, pages = 8, 2, 4 << 10, maxRequest >> 12
	var wg sync.WaitGroup
	errs := make(chan error, readers)
	for r := range readers {
		mem, err := unix.Mmap(-1, 0, maxRequest, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		require.NoError(t, err)
		defer unix.Munmap(mem)
		wg.Go(func() {
			f, err := unix.Open(m.path("file"), unix.O_RDONLY|unix.O_DIRECT, 0)
			if err != nil {
				errs <- err
				return
			}
			defer unix.Close(f)
			for i := range rounds * pages {
				n := (i*(2*r+1)+r)%pages + 1 // each size once a round
				if _, err := unix.Pread(f, mem[:n*page], 0); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
}
