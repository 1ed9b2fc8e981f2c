package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
)

// loopOver makes a block device over an image.
func loopOver(t *testing.T, image string, options ...string) string {
	t.Helper()
	dev, _ := looptest.Attach(t, image, options...)
	return dev
}

// showParts has the kernel show the partitions of a loop device (-P), whether it reads tables itself or not; hide takes them back.
func showParts(t *testing.T, dev, want string) (hide func()) {
	t.Helper()
	hide = func() { exec.Command("partx", "-d", dev).Run() }
	t.Cleanup(hide)
	exec.Command("partx", "-a", dev).Run() // it may have them
	if _, err := os.Stat(want); err != nil {
		t.Skipf("SKIPPED: the kernel has no partitions of loop devices here: %v", err)
	}
	return hide
}

// TestBlockDevice: a mount of a block device reads and writes round the page cache, by io_uring or, where that is refused, by calls that wait,
// and stat says which; what it wrote is whole.
func TestBlockDevice(t *testing.T) {
	for _, c := range []struct {
		name   string
		denied []denial
		want   string
	}{
		{"rings", nil, "O_DIRECT by io_uring"},
		{"refused", []denial{noRings}, "O_DIRECT by calls that wait: io_uring is refused here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			p.deny(unix.EPERM, c.denied...)
			dev := loopOver(t, p.image("img", 64), "-b", "4096")
			dir := p.mkdir("mnt")
			p.ok("mount", "--gpu", "host", "-o", "discard", dev, dir)
			r, err := p.stat(dir)
			require.NoError(t, err)
			if c.denied == nil && !strings.Contains(r.Device.Path, "io_uring") {
				t.Logf("no io_uring here: %s", r.Device.Path)
			} else {
				require.Contains(t, r.Device.Path, c.want)
			}
			require.Contains(t, p.ok("stat", dir), "medium      O_DIRECT")
			require.EqualValues(t, 4096, r.Device.BlockSize)
			want := make([]byte, 5<<20+123)
			for i := range want {
				want[i] = byte(i * i >> 8)
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), want, 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "gone"), want, 0o600))
			require.NoError(t, os.Remove(filepath.Join(dir, "gone")))
			require.Contains(t, p.fails("mount", "--gpu", "host", "--timeout", "1ms", "-o", "lba=512", dev, p.mkdir("other")), "mounted")
			p.ok("umount", dir)
			require.Contains(t, p.fails("mount", "--gpu", "host", "-o", "lba=512", dev, dir), "logical blocks of 4096 bytes")
			p.ok("mount", "--gpu", "host", dev, dir)
			got, err := os.ReadFile(filepath.Join(dir, "file"))
			require.NoError(t, err)
			require.Equal(t, want, got)
			p.ok("umount", dir)
			fsck(t, dev)
		})
	}
}

// TestSmallBlocks: a volume of blocks of 1 KiB on a loop device with sectors of 4 KiB is not mounted, and the error says how the device gets smaller ones.
// What it says helps.
func TestSmallBlocks(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("img", 32, "-b", "1024"), p.mkdir("mnt")
	dev := loopOver(t, image, "--sector-size", "4096")
	said := p.fails("mount", "--gpu", "host", dev, dir)
	require.Contains(t, said, "blocks of 1024 bytes are smaller than the device's of 4096")
	remedy := "losetup --sector-size 512 " + dev
	require.Contains(t, said, remedy)
	require.NotContains(t, said, "nvme")
	tool(t, "sh", "-c", remedy)
	p.ok("mount", "--gpu", "host", dev, dir)
	require.Contains(t, p.fails("mount", "--gpu", "host", "-o", "lba=4096", image, p.mkdir("other")), "in use")
	p.ok("umount", dir)
	require.Contains(t, p.fails("mount", "--gpu", "host", "-o", "lba=2048", dev, dir), "lba=1024 at most")
}
