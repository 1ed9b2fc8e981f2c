package devfuse_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/devfuse"
	"github.com/lanefs/lanefs/fs/uring/nullfs"
)

func needRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
}

func mount(t *testing.T, fs *nullfs.FS) *nullfs.Mount {
	needRoot(t)
	m, err := nullfs.NewMount(t.TempDir(), fs, false, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, unix.Unmount(m.Dir, unix.MNT_DETACH))
		m.Wait()
	})
	return m
}

// working makes requests until it is told to stop, on a thread of its own.
func working(dir string, stop chan struct{}) (stopped chan error) {
	stopped = make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			var st unix.Stat_t
			if err := unix.Stat(fmt.Sprintf("%s/other%d", dir, i), &st); err != unix.ENOENT {
				stopped <- err
				return
			}
		}
	}()
	return stopped
}

// awaitFollowed returns when a reader has SCHED_IDLE, or soon: beside programs that compute none keeps it for long, and what is tested must hold then, too.
func awaitFollowed(m *nullfs.Mount) {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if s, _ := m.Device.SchedIdle(); s == nil || s.Now > 0 {
			return
		}
	}
}

// TestRelieved: while a program is followed there is one reader. When that is held up by a request, the next one does not wait for it.
func TestRelieved(t *testing.T) {
	n := nullfs.New()
	n.Blocked, n.Entered = make(chan struct{}), make(chan struct{}, 100)
	m := mount(t, n)
	if s, err := m.Device.SchedIdle(); s == nil {
		t.Skipf("SKIPPED: SCHED_IDLE cannot be had: %v", err)
	}
	for i := range 20 {
		stop := make(chan struct{})
		stopped := working(m.Dir, stop)
		awaitFollowed(m)
		block := make(chan struct{})
		go func() { // which takes the only reader, most likely
			defer close(block)
			var st unix.Stat_t
			_ = unix.Stat(fmt.Sprintf("%s/block%d", m.Dir, i), &st)
		}()
		select {
		case <-n.Entered:
		case <-time.After(time.Minute):
			t.Fatal("a request is not taken")
		}
		done := make(chan struct{})
		go func() {
			var st unix.Stat_t
			for k := range 10 {
				_ = unix.Stat(fmt.Sprintf("%s/more%d-%d", m.Dir, i, k), &st)
			}
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			close(n.Blocked)
			t.Fatal("requests wait for one that is held up")
		}
		n.Blocked <- struct{}{}
		<-block
		close(stop)
		require.NoError(t, <-stopped)
	}
}

// TestWaits: who says that it waits for another request leaves a reader that takes it: one that waits, or one that the guard wakes. Mostly it need not wait, and then
// nobody is woken.
func TestWaits(t *testing.T) {
	n := nullfs.New()
	n.Blocked, n.Entered = make(chan struct{}), make(chan struct{}, 100)
	m := mount(t, n)
	stat := func(name string) chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			var st unix.Stat_t
			_ = unix.Stat(filepath.Join(m.Dir, name), &st)
		}()
		return done
	}
	nobody := false // is woken, if that is seen before the guard looks
	for end := time.Now().Add(time.Minute); !nobody && time.Now().Before(end); {
		stop := make(chan struct{})
		stopped := working(m.Dir, stop)
		awaitFollowed(m)
		close(stop)
		require.NoError(t, <-stopped)
		held := stat("block")
		<-n.Entered
		parked := m.Device.Parked() > 0
		require.True(t, m.Device.Waits())
		nobody = parked && m.Device.Waiting() == 0
		select {
		case <-stat("other"):
		case <-time.After(time.Minute):
			close(n.Blocked)
			t.Fatal("nobody takes the other request")
		}
		n.Blocked <- struct{}{}
		<-held
	}
	require.True(t, nobody)
}

// TestAsking: who asks /proc where a program runs may wait until the program's asynchronous requests are answered, and its dirty pages written: if the program ends
// just then, the kernel has that one wait for them. So the reader has no such request, and another one takes those that come.
func TestAsking(t *testing.T) {
	var began, ended, asked atomic.Int64
	var busy atomic.Bool
	var dir atomic.Pointer[string]
	t.Cleanup(devfuse.Asking(func() {
		if dir.Load() == nil || !busy.CompareAndSwap(false, true) {
			return // of another reader: all would ask, and none serve
		}
		defer busy.Store(false)
		asked.Add(1)
		var st unix.Stat_t
		_ = unix.Stat(fmt.Sprintf("%s/asked%d", *dir.Load(), asked.Load()), &st)
		for until := began.Load(); ended.Load() < until; {
			time.Sleep(100 * time.Microsecond)
		}
	}))
	m := mount(t, nullfs.New())
	if s, err := m.Device.SchedIdle(); s == nil {
		t.Skipf("SKIPPED: SCHED_IDLE cannot be had: %v", err)
	}
	fd, err := unix.Open(m.Dir+"/data", unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	dir.Store(&m.Dir)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer unix.Close(fd)
		var st unix.Stat_t
		for i := range 3000 {
			began.Add(1)
			_, err := unix.Pread(fd, page, int64(i)*4096)
			ended.Add(1)
			if err == nil && i%3 == 0 {
				if err = unix.Stat(fmt.Sprintf("%s/none%d", m.Dir, i), &st); err == unix.ENOENT {
					err = nil
				}
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
		require.Positive(t, asked.Load())
	case <-time.After(time.Minute):
		_ = unix.Unmount(m.Dir, unix.MNT_FORCE) // ends the connection
		t.Error("who asks waits for a request that nobody answers")
		<-done
	}
}

// TestManyUnderWay: more programs wait than there may be readers. That is no fault, and nothing is lost.
func TestManyUnderWay(t *testing.T) {
	n := nullfs.New()
	n.Blocked, n.Entered = make(chan struct{}), make(chan struct{}, 200)
	var said bytes.Buffer // of the mount until it has ended
	needRoot(t)
	m, err := nullfs.NewMount(t.TempDir(), n, false, slog.New(slog.NewTextHandler(&said, nil)))
	require.NoError(t, err)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			var st unix.Stat_t
			_ = unix.Stat(fmt.Sprintf("%s/block%d", m.Dir, i), &st)
		})
	}
	for range 64 {
		<-n.Entered
	}
	close(n.Blocked)
	all.Wait()
	require.NoError(t, unix.Unmount(m.Dir, unix.MNT_DETACH))
	m.Wait()
	require.Contains(t, said.String(), "level=INFO")
	require.NotContains(t, said.String(), "level=WARN")
}
