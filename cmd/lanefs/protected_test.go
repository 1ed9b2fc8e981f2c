package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
)

// TestMountProtected: a mount names write protection, and what lifts it, and mounts with -o ro.
func TestMountProtected(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	check := func(device, remedy string) {
		require.Contains(t, p.fails("mount", device, mnt), "cannot be opened for writing (mount and raw take it read-only with -o ro, bench and prove without --destroy; or "+remedy)
		p.ok("mount", "-o", "ro", device, mnt)
		p.ok("umount", mnt)
	}
	dev, detach := looptest.Attach(t, img)
	tool(t, "blockdev", "--setro", dev)
	check(dev, "lift its write protection with blockdev --setrw "+dev)
	tool(t, "blockdev", "--setrw", dev)
	p.ok("mount", dev, mnt)
	p.ok("umount", mnt)
	detach()

	other := filepath.Join(t.TempDir(), "image")
	tool(t, "cp", img, other)
	if out, err := exec.Command("chattr", "+i", other).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: no attributes of files in %s: %s", filepath.Dir(other), out)
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", other).Run() })
	check(other, "take its attribute i away with chattr -i "+other)
}

// TestProtectedWhileMounted: a block device becomes write-protected under a mount. Writers hear EROFS, each write is refused once and not tried again, stat says why, and when the protection is
// lifted the next mount has all that was synchronized: nothing is marked.
func TestProtectedWhileMounted(t *testing.T) {
	p := newPlace(t)
	img, mnt, log := p.image("image", 32), p.mkdir("mnt"), p.path("log")
	dev, _ := looptest.Attach(t, img)
	p.ok("mount", "-o", "commit=300,log="+log, dev, mnt)
	w := &writer{t: t, dir: mnt, acked: map[string][]byte{}}
	require.NoError(t, w.file(1<<20))
	tool(t, "blockdev", "--setro", dev)
	t.Cleanup(func() { _ = exec.Command("blockdev", "--setrw", dev).Run() })
	before, err := p.stat(mnt)
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(mnt, "lost"))
	require.NoError(t, err)
	require.Error(t, f.Sync())
	f.Close()
	require.Error(t, os.Mkdir(filepath.Join(mnt, "more"), 0o700))
	w.check()
	after, err := p.stat(mnt)
	require.NoError(t, err)
	require.True(t, after.ReadOnly)
	require.LessOrEqual(t, after.Total.Errors-before.Total.Errors, uint64(2), "refused writes are not tried again")
	said, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(said), "the image has become write-protected: lift its write protection with blockdev --setrw "+dev)
	require.Contains(t, string(said), "lift its write protection, unmount it, and mount it again, without e2fsck")
	require.NotContains(t, string(said), "run e2fsck")
	_, _, _ = p.run("umount", mnt) // it tells of the error
	p.eventually("the unmount", func() bool { return !p.mounted(mnt) })
	tool(t, "blockdev", "--setrw", dev)
	p.eventually("the next mount", func() bool {
		_, note, err := p.run("mount", dev, mnt)
		return err == nil && note == ""
	})
	w.check()
	require.NoError(t, w.file(10))
	p.ok("umount", mnt)
	fsck(t, img)
}
