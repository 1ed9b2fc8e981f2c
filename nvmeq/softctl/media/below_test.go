package media

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
)

// TestLoopCutShort: a loop device whose file is cut short is told of, once, at the next flush; one that begins at an offset, too, and not one of which only the rest behind it is gone.
func TestLoopCutShort(t *testing.T) {
	for _, options := range [][]string{nil, {"-o", "1048576"}, {"-o", "1048576", "--sizelimit", "2097152"}} {
		file := filepath.Join(t.TempDir(), "image")
		require.NoError(t, os.WriteFile(file, make([]byte, 4<<20), 0o600))
		dev, detach := looptest.Attach(t, file, options...)
		var log bytes.Buffer
		m, err := Open(dev, Options{BlockSize: 512, Log: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, m.Flush())
		if len(options) == 4 {
			require.NoError(t, os.Truncate(file, 3<<20))
			require.NoError(t, m.Flush())
		}
		require.Empty(t, log.String())
		require.NoError(t, os.Truncate(file, 3<<20-4096))
		for range 3 {
			_ = m.Flush()
		}
		require.Equal(t, 1, strings.Count(log.String(), "the file of the loop device was cut short"), log.String())
		require.Contains(t, log.String(), "file="+file)
		require.NoError(t, m.Close())
		detach()
	}
}
