package uring_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/fs/uring/nullfs"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestKeepers: threads to which requests come quickly keep their Go processors. They hold up neither the garbage collector nor goroutines that find no
// processor; when no requests come they give them back, and answer the next one.
func TestKeepers(t *testing.T) {
	uringtest.Enable(t)
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	keepers := uring.DefaultKeepers(runtime.NumCPU())
	require.Positive(t, keepers)
	runtime.GOMAXPROCS(runtime.NumCPU() + keepers)
	m := mount(t, nullfs.New(), true)
	var st unix.Stat_t
	busy := func() {
		require.Eventually(t, func() bool {
			for range 1000 {
				require.ErrorIs(t, unix.Stat(m.Dir+"/none", &st), unix.ENOENT)
			}
			return m.Rings.Keeping() > 0
		}, time.Minute, time.Millisecond)
	}
	busy()
	runtime.GC() // stops the world several times
	busy()
	runtime.GOMAXPROCS(1) // likewise, and then a keeper has the only processor
	done := make(chan struct{})
	go close(done)
	<-done
	runtime.GOMAXPROCS(runtime.NumCPU() + keepers)
	busy()
	require.Eventually(t, func() bool { return m.Rings.Keeping() == 0 }, time.Minute, time.Millisecond)
	require.ErrorIs(t, unix.Stat(m.Dir+"/none", &st), unix.ENOENT)
}

// deaf is a file system whose threads hear no signal of the runtime's once they have looked for a name.
type deaf struct {
	*nullfs.FS
	threads atomic.Int32 // times that one became so
}

func (d *deaf) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var set unix.Sigset_t
	set.Val[0] = 1 << (unix.SIGURG - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil) == nil {
		d.threads.Add(1)
	}
	return d.FS.Lookup(cancel, in, name, out)
}

// TestSignalLost: a keeper that hears no signal, as when a debugger let its thread go and the signal was lost, holds up the runtime for a moment only.
func TestSignalLost(t *testing.T) {
	uringtest.Enable(t)
	procs := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(procs)
	runtime.GOMAXPROCS(runtime.NumCPU() + uring.DefaultKeepers(runtime.NumCPU()))
	d := &deaf{FS: nullfs.New()}
	m := mount(t, d, true)
	for range 5 {
		require.Eventually(t, func() bool {
			var st unix.Stat_t
			for range 1000 {
				require.ErrorIs(t, unix.Stat(m.Dir+"/none", &st), unix.ENOENT)
			}
			return m.Rings.Keeping() > 0
		}, time.Minute, time.Millisecond)
		const late = 20 * time.Second
		end := exec.Command("sh", "-c", fmt.Sprintf("sleep %d; kill -KILL %d; umount -l %s", late/time.Second, os.Getpid(), m.Dir)) // else the test would not end
		require.NoError(t, end.Start())
		runtime.GC()
		require.NoError(t, end.Process.Kill())
		_ = end.Wait()
	}
	require.Positive(t, d.threads.Load())
}

// TestNoKeepers: a runtime that sends no signals would wait for keepers.
func TestNoKeepers(t *testing.T) {
	t.Setenv("GODEBUG", "gctrace=0,asyncpreemptoff=1")
	require.Zero(t, uring.DefaultKeepers(2))
}

// TestWhoKeeps: 32 quick waits in a row make a keeper. Waits of less than 100 ms leave it one, however many signals cut them; after 100 ms without a
// request it is none.
func TestWhoKeeps(t *testing.T) {
	var w uring.Waits
	quick := func() {
		for k := range 32 {
			require.Equal(t, k == 31, w.Count(100*time.Microsecond, true), "wait %d", k)
		}
	}
	for range 31 {
		w.Count(0, true)
	}
	require.False(t, w.Count(time.Millisecond, true), "a slow wait begins the row again")
	quick()
	require.True(t, w.Count(90*time.Millisecond, true))
	for range 9 {
		require.True(t, w.Count(10*time.Millisecond, false), "the signal of the runtime's monitor")
	}
	require.True(t, w.Count(9*time.Millisecond, true))
	for k := range 10 {
		require.Equal(t, k < 9, w.Count(10*time.Millisecond, false))
	}
	require.False(t, w.Count(0, true))
	w = uring.Waits{}
	quick()
}
