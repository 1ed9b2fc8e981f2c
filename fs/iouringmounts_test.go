//go:build !race

// With the race detector 200 mounts take minutes.

package fs

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMounts: mounts one after another leave nothing behind: no descriptors, threads or memory maps.
func TestMounts(t *testing.T) {
	skipRaced(t)
	bothWays(t, testMounts)
}

func testMounts(t *testing.T, way IOUring) {
	v := newVolume(t)
	count := func() (n [3]int) {
		for i, dir := range []string{"/proc/self/fd", "/proc/self/task"} {
			d, err := os.ReadDir(dir)
			require.NoError(t, err)
			n[i] = len(d)
		}
		n[2] = memoryMaps(t)
		return n
	}
	var before [3]int
	const mounts = 200
	for i := range mounts {
		dir := t.TempDir()
		s, err := Mount(dir, v.vol, Options{IOUring: way, SchedIdle: true})
		require.NoError(t, err)
		require.Equal(t, way == IOUringOff, s.device.Load() != nil)
		write(t, dir+"/file", "x")
		err = s.Unmount()
		if err != nil { // the test leaves no mount
			assert.NoError(t, Detach(dir))
		}
		require.NoError(t, err)
		if i == mounts/5 {
			before = count()
		}
	}
	more := func(now [3]int) bool { return now[0] > before[0]+8 || now[1] > before[1]+8 || now[2] > before[2]+8 }
	after := count()
	for looks := 0; more(after) && looks < 6000; looks++ { // threads of a mount end after it, in their own time
		time.Sleep(10 * time.Millisecond)
		after = count()
	}
	for i, what := range []string{"descriptors", "threads", "memory maps"} {
		require.LessOrEqual(t, after[i], before[i]+8, what)
	}
	v.close()
}

// memoryMaps counts the process's memory maps, but for Go's heap and its books: those are parts of ranges that the runtime has reserved, and come and go with it.
// A part lies beside one that is still reserved, which nobody may read or write.
func memoryMaps(t *testing.T) (n int) {
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	type area struct {
		from, to uint64
		reserved bool
	}
	var all []area
	for line := range strings.Lines(string(b)) {
		var a area
		var may string
		_, err := fmt.Sscanf(line, "%x-%x %s", &a.from, &a.to, &may)
		require.NoError(t, err)
		a.reserved = strings.HasPrefix(may, "---")
		all = append(all, a)
	}
	for i, a := range all {
		after := i > 0 && all[i-1].reserved && all[i-1].to == a.from
		before := i+1 < len(all) && all[i+1].reserved && all[i+1].from == a.to
		if !a.reserved && !after && !before {
			n++
		}
	}
	return n
}
