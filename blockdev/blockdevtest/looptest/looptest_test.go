package looptest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDetachWritable: a device that a test has write-protected is none when it is detached, for whoever gets it next.
func TestDetachWritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 1<<20), 0o600))
	dev, detach := Attach(t, file)
	out, err := exec.Command("blockdev", "--setro", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	detach()
	out, err = exec.Command("blockdev", "--getro", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "0\n", string(out))
}
