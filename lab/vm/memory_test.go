package vm

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// limitedGroup is a memory cgroup of version 1, where an allocation beyond the limit waits for pages that are being written.
func limitedGroup(t *testing.T, limit int) (procs string) {
	t.Helper()
	top := t.TempDir()
	if err := unix.Mount("cgroup", top, "cgroup", 0, "memory"); err != nil {
		t.Skipf("SKIPPED: this kernel has no memory cgroups of version 1: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(top, 0) })
	group := filepath.Join(top, "limited")
	require.NoError(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() { os.Remove(group) })
	require.NoError(t, os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte(strconv.Itoa(limit)), 0o644))
	return filepath.Join(group, "cgroup.procs")
}

// onDisk has f use a mount of an image that lies on a disk, in whose file inner there is ext4, mounted at carried by the kernel. Both are checked after.
func onDisk(t *testing.T, f func(dir, carried string), options ...string) {
	t.Helper()
	dev := disk(t, nvme0)
	mkfs(t, dev)
	kernelMount(t, dev, func(outer string) {
		image, carried := filepath.Join(outer, "image"), t.TempDir()
		must(t, "truncate", "-s", "440M", image)
		must(t, "mkfs.ext4", "-q", "-F", image)
		dir := mount(t, image, append([]string{"--gpu", "host"}, options...)...)
		defer run("lanefs", "umount", dir) // after a failure: else no other test gets the disk
		must(t, "truncate", "-s", "200M", dir+"/inner")
		must(t, "mkfs.ext4", "-q", "-F", dir+"/inner")
		must(t, "mount", "-t", "ext4", "-o", "loop", dir+"/inner", carried)
		defer run("umount", carried)
		f(dir, carried)
		must(t, "umount", carried)
		fsck(t, dir+"/inner")
		lanefs(t, "umount", dir)
		fsck(t, image)
	})
}

// fourWrite has four programs write 40 MiB each at once, after a first command, and compares them. One that the kernel kills because its group's memory is full of pages that are being
// written back, as it does on a slow machine (status 137), writes again, four times at most.
func fourWrite(t *testing.T, first, where string) {
	t.Helper()
	must(t, "sh", "-c", first+" && for i in 1 2 3 4; do { for n in 1 2 3 4 5; do dd if=/dev/zero of="+where+"/$i bs=1M count=40 conv=fsync; s=$?; [ $s = 137 ] || break; done; exit $s; } & p=\"$p $!\"; done; for i in $p; do wait $i || exit 1; done")
	for _, i := range []string{"1", "2", "3", "4"} {
		must(t, "sh", "-c", "head -c 41943040 /dev/zero | cmp - "+where+"/"+i+" && rm "+where+"/"+i)
	}
}

// TestLimitedMemory: programs with a limit of memory, as in a container, fill it with pages that the daemon, which is not in their group, is to store: of a file system on a file of the
// mount, and of the mount itself, through the kernel's writeback cache.
func TestLimitedMemory(t *testing.T) {
	join := "echo 0 >" + limitedGroup(t, 48<<20)
	onDisk(t, func(dir, carried string) {
		fourWrite(t, join, carried)
		fourWrite(t, join, dir)
	}, "-o", "writeback_cache")
}

// TestDirtyLimit: the pages of a file system on a file of the mount are all that the machine may have dirty. The daemon's writes to the disk make others, and must not be
// held up until there are fewer: it is the daemon that stores them.
func TestDirtyLimit(t *testing.T) {
	const limit = "/proc/sys/vm/dirty_bytes"
	onDisk(t, func(_, carried string) {
		require.NoError(t, os.WriteFile(limit, []byte("8388608"), 0))
		defer os.WriteFile("/proc/sys/vm/dirty_ratio", []byte("20"), 0) // which ends the limit in bytes
		fourWrite(t, "true", carried)
	})
}
