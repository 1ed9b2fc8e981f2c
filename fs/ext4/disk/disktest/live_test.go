package disktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCopyLive: a copy under which the image changed is not the one that is kept.
func TestCopyLive(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	img := make([]byte, 3<<20+100)
	copies := 0
	change := func(until int) func() {
		copies = 0
		return func() {
			if copies++; copies < until {
				img[(copies*1<<20)%len(img)]++
				require.NoError(t, os.WriteFile(from, img, 0o600))
			}
		}
	}
	require.NoError(t, os.WriteFile(from, img, 0o600))
	require.NoError(t, copyLive(from, to, 5, change(4)))
	require.Equal(t, 4, copies)
	got, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, img, got)

	require.ErrorContains(t, copyLive(from, to, 5, change(1000)), "changed under each")
}
