//go:build !race

// With the race detector 200 mounts take minutes.

package fs

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

// TestIOUringMounts: mounts one after another leave nothing behind: no descriptors, threads or memory maps.
func TestIOUringMounts(t *testing.T) {
	uringtest.Enable(t)
	v := newVolume(t)
	count := func() (n [3]int) {
		for i, dir := range []string{"/proc/self/fd", "/proc/self/task"} {
			d, err := os.ReadDir(dir)
			require.NoError(t, err)
			n[i] = len(d)
		}
		b, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		n[2] = bytes.Count(b, []byte("\n"))
		return n
	}
	var before [3]int
	mounts := 200
	if raced {
		mounts = 50
	}
	for i := range mounts {
		dir := t.TempDir()
		s, err := Mount(dir, v.vol, Options{IOUring: IOUringOn, SchedIdle: true})
		require.NoError(t, err)
		name, _ := s.Transport()
		require.Contains(t, name, "io_uring")
		write(t, dir+"/file", "x")
		require.NoError(t, s.Unmount())
		if i == mounts/5 {
			before = count()
		}
	}
	after := count()
	for i, what := range []string{"descriptors", "threads", "memory maps"} {
		more := 8
		if i == 2 {
			more = mounts / 5 // the kernel splits and joins those of Go's heap
		}
		require.LessOrEqual(t, after[i], before[i]+more, what)
	}
	v.close()
}
