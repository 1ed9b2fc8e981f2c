package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

func TestHelperArgs(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"lanefs", "mount", "/a", "/b"}, []string{"mount", "/a", "/b"}},
		{[]string{"lanefs", "/a", "/b", "-o", "ro"}, []string{"mount", "/a", "/b", "-o", "ro"}},
		{[]string{"lanefs", "disk.img", "/b", "-o", "rw,dev,suid"}, []string{"mount", "disk.img", "/b", "-o", "rw,dev,suid"}},
		{[]string{"lanefs", "mount", "/a", "-o", "ro", "b"}, []string{"mount", "/a", "-o", "ro", "b"}},
		{[]string{"lanefs", "unmount", "/b"}, []string{"unmount", "/b"}},
		{[]string{"/sbin/mount.lanefs", "/a", "/b", "-n", "-s", "-t", "fuse.lanefs", "-o", "ro"}, []string{"mount", "/a", "/b", "--sloppy", "-o", "ro"}},
		{[]string{"/sbin/umount.fuse.lanefs", "/b", "-n", "-t", "fuse.lanefs", "-v"}, []string{"umount", "/b"}},
		{[]string{"/sbin/umount.fuse.lanefs", "-nl", "/b"}, []string{"umount", "--lazy", "/b", "--quiet"}},
		{[]string{"/sbin/mount.fuse.lanefs", "/a", "/b", "-v", "-f", "-o", "-n"}, []string{"mount", "/a", "/b", "--fake", "-o", "-n"}},
		{[]string{"lanefs", "umount", "/b"}, []string{"umount", "/b"}},
		{[]string{"lanefs"}, []string{}},
	} {
		got, err := helperArgs(c.in)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := helperArgs([]string{"/sbin/mount.lanefs", "/a", "/b", "-N", "/proc/1/ns/mnt"})
	require.ErrorContains(t, err, "nsenter")
}

func TestMountHelper(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok(img, mnt, "-o", "rw,nosuid,nodev,user,x-test=1")
	p.ok("umount", mnt)
	// As a link named mount.lanefs, with what mount(8) adds.
	helper := p.path("mount.lanefs")
	require.NoError(t, os.Symlink(p.bin, helper))
	c := exec.Command(helper, img, mnt, "-n", "-t", "fuse.lanefs", "-o", "ro")
	c.Env = p.env
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, p.mounted(mnt))
	p.ok("umount", mnt)
}

// TestMount8: mount(8) finds the helper, by both types. Its directory is another in a mount namespace of the test's own.
func TestMount8(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	img, mnt, sbin := p.image("image", 32), p.mkdir("mnt"), p.mkdir("sbin")
	for _, name := range []string{"mount.lanefs", "mount.fuse.lanefs"} {
		require.NoError(t, os.Symlink(p.bin, filepath.Join(sbin, name)))
	}
	require.NoError(t, os.Symlink(p.bin, p.path("lanefs")))
	c := exec.Command("unshare", "--mount", "sh", "-e", "-c", disktest.LetGo+`
img=$1 mnt=$2 sbin=$3 lanefs=$4
mount --bind "$sbin" /sbin
mount -f -t lanefs "$img" "$mnt"
if grep "$mnt fuse.lanefs" /proc/mounts; then exit 1; fi
if mount -f -t lanefs -o lanse=4 "$img" "$mnt"; then exit 1; fi
mount -t lanefs -o ro,nosuid,nofail,x-systemd.automount "$img" "$mnt"
grep "$img $mnt fuse.lanefs ro,nosuid" /proc/mounts
"$lanefs" umount "$mnt"
mount -v -t fuse.lanefs -o defaults,lanes=2 "$img" "$mnt"
grep "$img $mnt fuse.lanefs rw" /proc/mounts
"$lanefs" umount "$mnt"
`, "sh", img, mnt, sbin, p.path("lanefs"))
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), `unknown option "lanse=4": did you mean "lanes"?`)
	fsck(t, img)
}
