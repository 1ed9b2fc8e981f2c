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

// TestEdge: an image in RAM is truncated, within its last page or before, and grows again.
func TestEdge(t *testing.T) {
	const size = 64 << 10
	for _, left := range []int64{size - 1, size - 4096 + 1, size - 4096, 8192, 0} {
		f, err := os.CreateTemp("/dev/shm", "media")
		require.NoError(t, err)
		t.Cleanup(func() { os.Remove(f.Name()) })
		require.NoError(t, f.Truncate(size))
		m, err := Open(f.Name(), Options{BlockSize: 512, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		require.NotNil(t, m.edge)
		for _, off := range []int64{0, size - 4096 - 512, size - 4096, size - 512} {
			require.NoError(t, m.present(off, 512))
		}
		require.NoError(t, f.Truncate(left))
		last := m.present(size-512, 512) // the last page is measured
		require.ErrorIs(t, last, ErrTruncated, left)
		require.NoError(t, f.Truncate(size))
		for off := int64(0); off < size; off += 512 {
			if err := m.present(off, 512); off+512 <= left {
				require.NoError(t, err, "%d left, at %d", left, off)
			} else {
				require.ErrorIs(t, err, ErrTruncated, "%d left, at %d", left, off)
			}
		}
		require.NoError(t, m.Close())

		require.NoError(t, f.Truncate(size)) // before the last page it tells as well, where that is gone
		m, err = Open(f.Name(), Options{BlockSize: 512, Log: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		require.NoError(t, f.Truncate(left))
		if err := m.present(size-8192, 512); left <= size-8192 {
			require.ErrorIs(t, err, ErrTruncated, left)
		} else {
			require.NoError(t, err, left)
		}
		require.NoError(t, m.Close())
		require.NoError(t, f.Close())
	}
}
