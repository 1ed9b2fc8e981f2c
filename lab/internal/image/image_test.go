package image

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/lab/internal/drive"
)

func make1k(t *testing.T) string {
	disktest.Tool(t, "mkfs.ext4", "dumpe2fs", "debugfs", "e2fsck")
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, Make(path, "4M", "-b", "1024"))
	return path
}

// TestFillFree: every free block gets the pattern, and nothing else does.
func TestFillFree(t *testing.T) {
	path := make1k(t)
	n := 0
	require.NoError(t, FillFree(path, 1024, func(at int64, b []byte) bool {
		for i := range b {
			b[i] = byte(at)
		}
		n++
		return true
	}))
	require.Greater(t, n, 1000)
	require.NoError(t, Check(path))
	require.Error(t, FillFree(path, 1024, func(int64, []byte) bool { return false }), "nothing was filled")
}

// TestRepair: what a loss of power leaves is not damage, and the rest is, unless it is allowed.
func TestRepair(t *testing.T) {
	path := make1k(t)
	r, err := Repair(path)
	require.NoError(t, err)
	require.False(t, r.Damage, r.Output)
	wrong := func() {
		_, err := drive.Run("debugfs", "-w", "-R", "set_inode_field <2> i_blocks 44", path)
		require.NoError(t, err)
		require.ErrorContains(t, Check(path), "i_blocks is 44")
	}
	wrong()
	r, err = Repair(path)
	require.NoError(t, err)
	require.True(t, r.Damage, r.Output)
	require.NoError(t, Check(path))
	wrong()
	r, err = Repair(path, regexp.MustCompile(`Inode \d+, i_blocks is \d+, should be \d+\.  Fix\? yes\n`))
	require.NoError(t, err)
	require.False(t, r.Damage, r.Output)
	require.Error(t, Check(os.DevNull))
}

// TestWithKernel: the kernel mounts an image, which a child process finds by Path as well.
func TestWithKernel(t *testing.T) {
	path := make1k(t)
	if why := KernelMissing(); why != "" {
		t.Skipf("SKIPPED: %s", why)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	dir := t.TempDir()
	require.NoError(t, WithKernel(f, dir, func() error { return os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o600) }))
	require.NoError(t, Check(Path(f)))
	out, err := drive.Run("debugfs", "-R", "cat /file", Path(f))
	require.NoError(t, err)
	require.Contains(t, out, "x")
}
