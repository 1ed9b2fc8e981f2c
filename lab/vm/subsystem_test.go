package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSharedNamespace: two controllers have a namespace. Whoever mounts it by one of them, LaneFS or the kernel, keeps LaneFS from it by the
// other, and afterwards the other reads what was written.
func TestSharedNamespace(t *testing.T) {
	disk(t, second)
	dev := disk(t, several)
	mkfs(t, dev)
	content := pattern(300<<10, 4)
	t.Run("LaneFS", func(t *testing.T) {
		bound(t, several)
		bound(t, second)
		require.Regexp(t, `shared +other controllers`, lanefs(t, "identify", several+"/1"))
		require.NotContains(t, lanefs(t, "identify", several+"/2"), "other controllers")
		dir := mount(t, several)
		for _, args := range [][]string{{"mount", second, t.TempDir()}, {"mount", "-o", "ro", second, t.TempDir()}, {"bench", "--destroy", second}} {
			require.Contains(t, refused(t, args...), "namespace 1 of the drive QEMU NVMe Ctrl, serial LANEFS-SUB is in use: another LaneFS has it")
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), content, 0o600))
		lanefs(t, "umount", dir)
		dir = mount(t, second)
		got, err := os.ReadFile(filepath.Join(dir, "file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got))
		lanefs(t, "umount", dir)
	})
	t.Run("kernel", func(t *testing.T) {
		bound(t, second)
		dev := disk(t, several)
		in := fmt.Sprintf("through another controller as %s, which is mounted", filepath.Base(dev))
		kernelMount(t, dev, func(string) { require.Contains(t, refused(t, "mount", second, t.TempDir()), in) })
		dir := mount(t, second)
		require.ErrorIs(t, unix.Mount(dev, t.TempDir(), "ext4", 0, ""), unix.EBUSY, "the kernel mounts what LaneFS has")
		lanefs(t, "umount", dir)
	})
	fsck(t, disk(t, several))
}

// TestNamespaceOfOne: a namespace that only one controller of a subsystem has is mounted by it, beside a shared one that another has mounted. The
// other, and each that none has, are refused by name.
func TestNamespaceOfOne(t *testing.T) {
	mkfs(t, blockDevice(t, several, 2))
	mkfs(t, disk(t, second))
	t.Run("lanefs", func(t *testing.T) {
		bound(t, several)
		bound(t, second)
		shared := mount(t, second)
		dir := mount(t, several+"/2")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), pattern(300<<10, 5), 0o600))
		lanefs(t, "umount", dir)
		lanefs(t, "umount", shared)
		require.Contains(t, refused(t, "mount", second+"/2", t.TempDir()), "namespace 2 is not attached to this controller")
		require.Contains(t, refused(t, "mount", several+"/3", t.TempDir()), "namespace 3 is not attached to this controller (CNTLID 0), which has [1 2]")
		require.Contains(t, refused(t, "mount", several+"/4", t.TempDir()), "no active namespace 4; it has [1 2]")
	})
	dev := blockDevice(t, several, 2)
	fsck(t, dev)
	kernelMount(t, dev, func(dir string) {
		got, err := os.ReadFile(filepath.Join(dir, "file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(pattern(300<<10, 5), got))
	})
}
