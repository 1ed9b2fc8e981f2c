package fs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

func init() { helpers["readboundto0"] = readBoundHelper }

// readBoundHelper reads files at the same time, each with a thread on CPU 0, whose queue gets all their requests.
func readBoundHelper(args []string) {
	errs := make(chan error)
	for _, path := range args {
		go func() {
			runtime.LockOSThread()
			var cpu unix.CPUSet
			cpu.Set(0)
			err := unix.SchedSetaffinity(0, &cpu)
			if err == nil {
				_, err = os.ReadFile(path)
			}
			errs <- err
		}()
	}
	var err error
	for range args {
		err = errors.Join(err, <-errs)
	}
	if err != nil {
		die("%v", err)
	}
}

// TestFullQueue: as many requests of a CPU as it has servers wait for a device that does not answer. The next one waits with the kernel, and the
// program that made it ends when it is killed. Programs on other CPUs are served. Requests under way together are told of; one at a time
// are not.
func TestFullQueue(t *testing.T) {
	uringtest.Enable(t)
	var crowded atomic.Int64
	m := newMount(t, Options{IOUring: IOUringOn, Crowded: func() { crowded.Add(1) }})
	servers := m.srv.rings.used().Servers()
	var files []string
	for i := range servers {
		f, err := os.Create(m.path(fmt.Sprint("slow", i)))
		require.NoError(t, err)
		_, err = f.WriteString(strings.Repeat("x", 4096))
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		require.NoError(t, f.Close())
		files = append(files, f.Name())
	}
	require.Less(t, crowded.Load(), int64(servers), "one request at a time is no crowd")
	crowded.Store(0)

	_, release := m.dev.Hold(blockdev.Fault{Op: blockdev.OpRead})
	release = sync.OnceFunc(release)
	t.Cleanup(release)
	readers := helper(t, "readboundto0", files...)
	require.NoError(t, readers.Start())
	all := int64(servers - runtime.NumCPU())
	for end := time.Now().Add(2 * time.Minute); crowded.Load() < all && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	require.GreaterOrEqual(t, crowded.Load(), all, "readers that wait together")

	next := helper(t, "readboundto0", m.path("slow0"))
	require.NoError(t, next.Start())
	time.Sleep(100 * time.Millisecond) // it may not have come to its request yet: then this proves less
	require.NoError(t, next.Process.Kill())
	ended := make(chan error, 1)
	go func() { ended <- next.Wait() }()
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "killed")
	case <-time.After(time.Minute):
		t.Error("a killed program waits for a request that nobody has")
	}
	if runtime.NumCPU() > 1 {
		on1 := helper(t, "lookup", m.dir)
		started := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // for good: the child's CPU is its parent's
			var cpu unix.CPUSet
			cpu.Set(1)
			if err := unix.SchedSetaffinity(0, &cpu); err != nil {
				started <- err
				return
			}
			started <- on1.Start()
		}()
		require.NoError(t, <-started)
		require.NoError(t, on1.Wait())
	}
	release()
	require.NoError(t, readers.Wait())
	on0 := helper(t, "lookup", m.dir)
	require.NoError(t, on0.Run(), "afterwards")
}

// TestSignals: signals that a program handles while it waits do nothing to its request, on either transport: what the kernel says by
// INTERRUPT ends no request of LaneFS, as a read of the kernel's ext4 is not ended by them.
func TestSignals(t *testing.T) {
	onBoth(t, func(t *testing.T, m *mounted) string {
		reader, release := hanging(t, m)
		for range 20 {
			require.NoError(t, reader.Process.Signal(unix.SIGURG)) // Go's runtime handles it
			time.Sleep(time.Millisecond)
		}
		others := helper(t, "lookup", m.dir)
		require.NoError(t, others.Run())
		release()
		require.NoError(t, reader.Wait())
		return ""
	})
}
