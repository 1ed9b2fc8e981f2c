package vm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPartitionOfFunction: of a drive with a GPT, which sfdisk has made, the second partition is mounted on the bound function, by its number and by
// what it and its volume are called; the kernel reads what was written there, and what is beside it is as it was.
func TestPartitionOfFunction(t *testing.T) {
	if _, err := exec.LookPath("sfdisk"); err != nil {
		t.Skip("SKIPPED: no sfdisk in the guest")
	}
	const (
		partUUID = "6f1b2c3d-0002-4002-8003-0123456789ab"
		begin    = 8 << 20
	)
	dev := disk(t, nvme0)
	t.Cleanup(func() { require.NoError(t, dd("/dev/zero", disk(t, nvme0), "bs=1M", "count=2")) })
	c := exec.Command("sfdisk", "-q", "--no-reread", "--no-tell-kernel", dev)
	c.Stdin = strings.NewReader("label: gpt\nstart=2048, size=4096\nstart=16384, size=262144, uuid=" + partUUID + ", name=\"lab part\"\n")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	// The kernel need not know partitions: a loop device begins where this one does.
	part := func(f func(loop string)) {
		loop := strings.TrimSpace(must(t, "losetup", "-f"))
		must(t, "losetup", "-o", "8388608", loop, disk(t, nvme0))
		defer must(t, "losetup", "-d", loop)
		f(loop)
	}
	part(func(loop string) { must(t, "mkfs.ext4", "-q", "-F", "-L", "in part two", loop, "128M") })
	before := beginning(t, dev)
	require.Len(t, before, begin)
	content := pattern(300<<10, 7)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		for i, name := range []string{nvme0 + "-part2", nvme0 + "/1-part2", "PARTUUID=" + strings.ToUpper(partUUID), "PARTLABEL=lab part", "LABEL=in part two",
			"/dev/disk/by-partuuid/" + partUUID} {
			dir := mount(t, name)
			file := filepath.Join(dir, "file")
			if i == 0 {
				require.NoError(t, os.WriteFile(file, content, 0o600))
				require.Contains(t, refused(t, "mount", nvme0+"-part1", t.TempDir()), "in use")
			}
			got, err := os.ReadFile(file)
			require.NoError(t, err, name)
			require.True(t, bytes.Equal(content, got), name)
			lanefs(t, "umount", dir)
		}
		require.Contains(t, refused(t, "mount", nvme0+"-part3", t.TempDir()), "there is no partition 3; name one of those there are: 1, 2")
		require.Contains(t, refused(t, "mount", nvme0, t.TempDir()), "it is a partition table (GPT)")
		file := filepath.Join(t.TempDir(), "raw")
		lanefs(t, "raw", nvme0+"-part2", file)
		fsck(t, file)
		lanefs(t, "umount", file)
	})
	require.True(t, bytes.Equal(before, beginning(t, disk(t, nvme0))), "the table, or the first partition, was written to")
	part(func(loop string) {
		fsck(t, loop)
		kernelMount(t, loop, func(dir string) {
			got, err := os.ReadFile(filepath.Join(dir, "file"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(content, got))
		})
	})
}
