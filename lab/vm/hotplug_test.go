package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const secondCPU = "/sys/devices/system/cpu/cpu1/online"

// online switches the second CPU on or off.
func online(t *testing.T, on string) {
	t.Helper()
	require.NoError(t, os.WriteFile(secondCPU, []byte(on), 0))
}

// hotplugImage is a volume in memory.
func hotplugImage(t *testing.T) string {
	image := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 64<<20))
	mkfs(t, image)
	return image
}

// needRings skips where the kernel has no FUSE over io_uring, or one CPU.
func needRings(t *testing.T) {
	b, err := os.ReadFile("/sys/module/fuse/parameters/enable_uring")
	if err != nil || string(b[:1]) != "Y" {
		t.Skipf("this kernel has no FUSE over io_uring: %q, %v", b, err)
	}
	if _, err := os.Stat(secondCPU); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.WriteFile(secondCPU, []byte("1"), 0) })
}

// onCPU runs f on a CPU, on a thread of its own.
func onCPU(cpu int, f func() error) error {
	done := make(chan error)
	go func() {
		done <- func() error {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			var set unix.CPUSet
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				return err
			}
			return f()
		}()
	}()
	return <-done
}

// TestRingsCPUComes: a CPU is offline when a mount is made, and comes online: its requests are answered.
func TestRingsCPUComes(t *testing.T) {
	needRings(t)
	image := hotplugImage(t)
	online(t, "0")
	dir := mount(t, image, "--gpu", "host", "-o", "io_uring=on")
	require.Contains(t, lanefs(t, "stat", dir), "requests    by io_uring")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "first"), []byte("x"), 0o644))
	online(t, "1")
	for i := range 20 {
		require.NoError(t, onCPU(1, func() error { return os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte("x"), 0o644) }))
	}
	lanefs(t, "umount", dir)
	fsck(t, image)
}

// TestRingsCPUGoes: a CPU goes offline under load and comes back, some times. The kernel moves its threads, and does not move them back;
// requests are answered all the time.
func TestRingsCPUGoes(t *testing.T) {
	needRings(t)
	image := hotplugImage(t)
	dir := mount(t, image, "--gpu", "host", "-o", "io_uring=on")
	require.Contains(t, lanefs(t, "stat", dir), "requests    by io_uring")
	var stop atomic.Bool
	var done atomic.Int64
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			name := filepath.Join(dir, fmt.Sprint("load", i))
			for !stop.Load() {
				if err := os.WriteFile(name, []byte("some text"), 0o644); err != nil {
					t.Error(err)
					return
				}
				if b, err := os.ReadFile(name); err != nil || string(b) != "some text" {
					t.Errorf("%q, %v", b, err)
					return
				}
				if err := os.Remove(name); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	progress := func() {
		from := done.Load()
		require.Eventually(t, func() bool { return done.Load() > from+8 }, commandTimeout, 20*time.Millisecond, "requests are not answered")
	}
	for range 3 {
		online(t, "0")
		progress()
		online(t, "1")
		progress()
	}
	stop.Store(true)
	all.Wait()
	require.NoError(t, onCPU(1, func() error { return os.WriteFile(filepath.Join(dir, "last"), []byte("x"), 0o644) }))
	lanefs(t, "umount", dir)
	fsck(t, image)
}
