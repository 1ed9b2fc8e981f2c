package media

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlushesAtOnce: only where there is no disk, as stat says.
func TestFlushesAtOnce(t *testing.T) {
	shm, err := os.MkdirTemp("/dev/shm", "media")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(shm) })
	for _, dir := range []string{shm, t.TempDir()} {
		path := filepath.Join(dir, "flushes.img")
		t.Cleanup(func() { os.Remove(path) })
		require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
		kind, err := exec.Command("stat", "-f", "-c", "%T", path).Output()
		require.NoError(t, err)
		for _, readOnly := range []bool{false, true} {
			m, err := Open(path, Options{BlockSize: 512, ReadOnly: readOnly, Log: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			require.Equal(t, strings.TrimSpace(string(kind)) == "tmpfs", m.FlushesAtOnce(), dir)
			require.NoError(t, m.Close())
		}
	}
}
