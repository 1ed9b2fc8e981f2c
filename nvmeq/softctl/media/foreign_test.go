package media

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestForeignWrite: what another program writes to an image while that is idle is said, once, at the next write; what LaneFS writes itself is not, whenever it is idle, also by many threads.
func TestForeignWrite(t *testing.T) {
	was := idleAfter
	idleAfter = 10 * time.Millisecond
	defer func() { idleAfter = was }()
	for _, dir := range []string{"/dev/shm", t.TempDir()} {
		f, err := os.CreateTemp(dir, "media")
		require.NoError(t, err)
		t.Cleanup(func() { os.Remove(f.Name()) })
		require.NoError(t, f.Truncate(1<<20))
		require.NoError(t, f.Close())
		var log bytes.Buffer
		m, err := Open(f.Name(), Options{BlockSize: 512, Log: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		sleep := func() {
			require.NoError(t, m.Flush())
			require.Eventually(t, func() bool { return m.watch.state.Load() == idle }, time.Minute, time.Millisecond)
		}
		write := func(durable bool) {
			var all sync.WaitGroup
			for k := range int64(8) {
				all.Go(func() { // not all at once
					var b Buffers
					b.Add(make([]byte, 4096))
					if err := m.Write(&b, k<<12, durable, 0); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
		}
		for n := range 20 {
			write(n%2 == 0)
			sleep()
			require.NoError(t, m.Zero(4096, 4096, false, 0))
			sleep()
			var b Buffers
			b.Add(make([]byte, 4096))
			require.NoError(t, m.Read(&b, 0))
		}
		require.Empty(t, log.String())

		other := filepath.Join(t.TempDir(), "other")
		require.NoError(t, os.WriteFile(other, make([]byte, 1<<20), 0o600))
		out, err := exec.Command("cp", other, f.Name()).CombinedOutput()
		require.NoError(t, err, "%s", out)
		write(false)
		require.Equal(t, 1, strings.Count(log.String(), "another program has written to the image while it is mounted"), log.String())
		sleep()
		require.NoError(t, os.WriteFile(f.Name(), make([]byte, 1<<20), 0o600))
		write(true)
		require.Equal(t, 1, strings.Count(log.String(), "\n"), "once")
		sleep()
		require.NoError(t, m.Close())
	}
}
