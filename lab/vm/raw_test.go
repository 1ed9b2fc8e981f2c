package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRawOfFunction: on the namespace of a bound function, shown as a file, the programs of e2fsprogs make a volume, put a file into it and check it, and dd
// reads it. LaneFS mounts that volume, and so does the kernel once it has the function back.
func TestRawOfFunction(t *testing.T) {
	skipOthers(t, 0)
	disk(t, nvme0)
	content := pattern(700<<10, 3)
	source := filepath.Join(t.TempDir(), "source")
	require.NoError(t, os.WriteFile(source, content, 0o600))
	same := func(dir string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(dir, "there"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got))
	}
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		file := filepath.Join(t.TempDir(), "raw")
		lanefs(t, "raw", nvme0, file)
		must(t, "mkfs.ext4", "-q", "-F", "-O", "metadata_csum_seed,orphan_file", file, "128M")
		must(t, "debugfs", "-w", "-R", "write "+source+" there", file)
		fsck(t, file)
		copied := filepath.Join(t.TempDir(), "copied")
		require.NoError(t, dd(file, copied, "bs=64k", "count=64", "iflag=direct"))
		want := beginning(t, file)
		got, err := os.ReadFile(copied)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[:len(got)], got))
		require.Len(t, got, 4<<20)
		require.Contains(t, refused(t, "mount", nvme0, t.TempDir()), "shows it as the file")
		lanefs(t, "umount", file)
		dir := mount(t, nvme0)
		same(dir)
		lanefs(t, "umount", dir)
	})
	dev := disk(t, nvme0)
	fsck(t, dev)
	kernelMount(t, dev, same)
}
