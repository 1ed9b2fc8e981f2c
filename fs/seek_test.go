package fs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSeekTogether: a search for data has the kernel write back dirty pages first. More programs that do so on a CPU than a ring's queue has threads
// wait for one another's writes no longer than they must; those that cannot wait are told that there is no searching.
func TestSeekTogether(t *testing.T) {
	skipRaced(t)
	bothWays(t, testSeekTogether)
}

func testSeekTogether(t *testing.T, way IOUring) {
	m := newMount(t, Options{IOUring: way, WriteBack: true})
	const programs = 40
	var found atomic.Int32
	var all sync.WaitGroup
	errs := make(chan error, programs)
	var begin sync.WaitGroup
	begin.Add(programs)
	for i := range programs {
		f, err := os.Create(m.path(fmt.Sprint("file", i)))
		require.NoError(t, err)
		all.Go(func() {
			defer f.Close()
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			var set unix.CPUSet
			set.Set(0)
			_ = unix.SchedSetaffinity(0, &set)
			b := make([]byte, 256<<10)
			begin.Done()
			begin.Wait()
			for range 20 {
				if _, err := f.WriteAt(b, 0); err != nil {
					errs <- err
					return
				}
				at, err := f.Seek(0, unix.SEEK_DATA)
				if errors.Is(err, unix.EINVAL) {
					continue // it does not know, and says so
				}
				if found.Add(1); err != nil || at != 0 {
					errs <- fmt.Errorf("data is at %d: %w", at, err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		_ = m.srv.Abort()
		<-done
		t.Fatal("searches for data wait for one another")
	}
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.NotZero(t, found.Load())
}
