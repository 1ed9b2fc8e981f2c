// Package uringtest is for tests that need FUSE over io_uring. It switches it on where the machine offers it, and back after the test.
package uringtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
)

// maxWait is how long a test waits for those of other packages.
const maxWait = 8 * time.Minute

const parameter = "/sys/module/fuse/parameters/enable_uring"

// Enable switches FUSE over io_uring on for the time of a test, or skips it with the reason. Tests that do so, of all packages,
// run one after another: the switch is the machine's.
func Enable(t testing.TB) { set(t, "Y") }

// Disable switches it off, likewise.
func Disable(t testing.TB) { set(t, "N") }

// Both runs a test twice: with requests on rings, and by /dev/fuse.
func Both(t *testing.T, test func(t *testing.T, rings bool)) {
	t.Run("io_uring", func(t *testing.T) {
		Enable(t)
		test(t, true)
	})
	t.Run("fuse", func(t *testing.T) { test(t, false) })
}

func set(t testing.TB, want string) {
	t.Helper()
	free, err := lock(os.TempDir())
	if err != nil {
		t.Fatalf("the lock of tests of FUSE over io_uring: %v", err)
	}
	t.Cleanup(free)
	before, err := os.ReadFile(parameter)
	if err != nil {
		t.Skipf("SKIPPED: %v", uring.ErrKernel)
	}
	if string(before[:1]) != want {
		if err := os.WriteFile(parameter, []byte(want), 0); err != nil {
			t.Skipf("SKIPPED: the fuse module's parameter enable_uring is %s, and cannot be changed: %v", before[:1], err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(parameter, before, 0); err != nil {
				t.Errorf("the fuse module's parameter enable_uring stays %s: %v", want, err)
			}
		})
	}
	if want != "Y" {
		return
	}
	u, err := uring.Open(uring.Options{})
	if unavailable := (*uring.Unavailable)(nil); errors.As(err, &unavailable) {
		t.Skipf("SKIPPED: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	u.Close()
}

// lock takes the lock in a directory, after who waited before. It has a queue of one: a test that has just freed the lock, and whose package's next one wants it, too, would have it each time
// before who looks now and then.
func lock(dir string) (free func(), err error) {
	queue, err := take(filepath.Join(dir, "lanefs-uringtest.queue"))
	if err != nil {
		return nil, err
	}
	defer queue.Close()
	f, err := take(filepath.Join(dir, "lanefs-uringtest.lock"))
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// take returns a file that has a lock of its own.
func take(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(maxWait); ; time.Sleep(50 * time.Millisecond) {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("%s, after %v: %w", name, maxWait, err)
		}
	}
}
