package main

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memoryGroup makes a control group with a limit of memory, in bytes, and returns its file of processes.
func memoryGroup(t *testing.T, limit int64) (procs string) {
	t.Helper()
	name := "lanefs-test-" + strconv.Itoa(os.Getpid())
	for _, try := range [][2]string{{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, {"/sys/fs/cgroup", "memory.max"}} {
		dir := filepath.Join(try[0], name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { // its last process may still be ending
			require.Eventually(t, func() bool { return os.Remove(dir) == nil }, time.Minute, 20*time.Millisecond)
		})
		if os.WriteFile(filepath.Join(dir, try[1]), []byte(strconv.FormatInt(limit, 10)), 0) == nil {
			return filepath.Join(dir, "cgroup.procs")
		}
	}
	t.Skip("SKIPPED: needs root, and control groups with limits of memory")
	return ""
}

// TestImageOutgrowsGroup: a mount tells of an image in memory that can become larger than the daemon's control group may.
func TestImageOutgrowsGroup(t *testing.T) {
	procs := memoryGroup(t, 1<<30) // taken away after the daemons
	p := newPlace(t)
	dir := p.mkdir("memory")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3g"); err != nil {
		t.Skipf("SKIPPED: needs root, to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	img, mnt := filepath.Join(dir, "image"), p.mkdir("mnt")
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.Truncate(img, 2<<30))
	tool(t, "mkfs.ext4", "-q", "-F", img)
	said, err := p.after("echo $$ >"+procs, "mount", img, mnt)
	require.NoError(t, err, said)
	require.Regexp(t, `^lanefs: "`+img+`" lies in memory and may take \S+ GiB more, but the daemon's control group has \d+\.?\d* MiB left, .*: raise the group's limit \(memory\.max, .*\n$`, said)
	p.ok("umount", mnt)
	said, err = p.after("echo $$ >"+procs, "mount", "-o", "ro", img, mnt)
	require.NoError(t, err, said)
	require.Empty(t, said)
	p.ok("umount", mnt)
}

// TestOutgrows: what counts is how much the image may grow, and what its file system has room for.
func TestOutgrows(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("SKIPPED: needs root, to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	c := &mountConfig{Device: filepath.Join(dir, "image")}
	require.NoError(t, os.WriteFile(c.Device, make([]byte, 2<<20), 0o600))
	require.NoError(t, os.Truncate(c.Device, 4<<20))
	require.Len(t, c.outgrows(1<<20), 1)
	require.Len(t, c.outgrows(-1), 1)
	require.Empty(t, c.outgrows(2<<20))
	require.Empty(t, c.outgrows(0), "not known")
	require.Empty(t, c.outgrows(math.MaxInt64), "no limit")
	require.NoError(t, os.Truncate(c.Device, 1<<30))
	require.Empty(t, c.outgrows(6<<20), "the file system ends before")
	require.Len(t, c.outgrows(5<<20), 1)
	c.ReadOnly = true
	require.Empty(t, c.outgrows(1))
	disk := &mountConfig{Device: filepath.Join(t.TempDir(), "image")}
	require.NoError(t, os.WriteFile(disk.Device, nil, 0o600))
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(disk.Device, &fs))
	if fs.Type != unix.TMPFS_MAGIC {
		require.NoError(t, os.Truncate(disk.Device, 1<<30))
		require.Empty(t, disk.outgrows(1))
	}
}
