package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestRemount: ro, rw and the kernel's flags change; nothing else does, and the errors say what to do instead.
func TestRemount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	file := filepath.Join(mnt, "file")
	f, err := os.Create(file)
	require.NoError(t, err)
	// As mount(8) hands it on: with what the table of mounts shows.
	shown := "rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,remount,"
	said := p.fails("mount", "-o", shown+"ro", img, mnt)
	require.Contains(t, said, "files are open for writing")
	require.NoError(t, f.Close())
	p.eventually("the release of the file", func() bool { _, _, err := p.run("mount", "-o", shown+"ro,noexec", img, mnt); return err == nil })
	require.ErrorIs(t, os.WriteFile(file, nil, 0o600), unix.EROFS)
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(mnt, &st))
	require.NotZero(t, st.Flags&unix.ST_NOEXEC)
	p.ok("mount", "-o", "remount,rw", img, mnt)
	require.NoError(t, os.WriteFile(file, []byte("again"), 0o600))
	said = p.fails("mount", "-o", "remount,cache=1M", img, mnt)
	require.Contains(t, said, "cache cannot be changed")
	require.Contains(t, p.fails("mount", "-o", "remount,frob", img, mnt), "unknown option")
	require.Contains(t, p.fails("mount", "-o", "remount,ro", "/proc", "/proc"), "not a LaneFS mount")
	p.umount(mnt)
	p.ok("mount", "-o", "ro", img, mnt)
	require.Contains(t, p.fails("mount", "-o", "remount,rw", img, mnt), "it was mounted with ro")
	p.umount(mnt)
	fsck(t, img)
}

// TestUmount8Elsewhere: a daemon that mounts takes out of libmount's table the entries of killed daemons, and none of a mount that it only does
// not see, for that is in another mount namespace.
func TestUmount8Elsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	img, mnt, other, place := p.image("image", 64), p.mkdir("mnt"), p.image("other", 64), p.mkdir("place")
	entry := func() bool {
		table, err := os.ReadFile("/run/mount/utab")
		require.NoError(t, err)
		return strings.Contains(string(table), " TARGET="+mnt+" ")
	}
	elsewhere := func() {
		c := exec.Command("unshare", "--mount", "sh", "-e", "-c", disktest.LetGo+`
if grep -q " $1 " /proc/mounts; then umount -n -i -l "$1"; fi # -n: umount(8) leaves the table alone
"$4" mount "$2" "$3"
"$4" umount "$3"
`, "sh", mnt, other, place, p.bin)
		c.Env = p.env
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	p.ok("mount", img, mnt)
	require.True(t, entry())
	elsewhere()
	require.True(t, entry(), "of a mount whose daemon lives")

	r, err := p.stat(mnt)
	require.NoError(t, err)
	p.kill(r.PID)
	elsewhere()
	require.False(t, entry(), "of a mount whose daemon was killed")
	_, errs, err := p.run("umount", mnt)
	require.NoError(t, err, errs)
}

// TestUmount8 ends a mount by umount(8), which returns when the helper does: when the device is closed. Helpers' directory is another in a
// mount namespace of the test's own.
func TestUmount8(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	img, mnt, sbin := p.image("image", 64), p.mkdir("mnt"), p.mkdir("sbin")
	for _, name := range []string{"mount.lanefs", "umount.fuse.lanefs"} {
		require.NoError(t, os.Symlink(p.bin, filepath.Join(sbin, name)))
	}
	require.NoError(t, os.Symlink(p.bin, p.path("lanefs")))
	c := exec.Command("unshare", "--mount", "sh", "-e", "-c", disktest.LetGo+`
img=$1 mnt=$2 sbin=$3 lanefs=$4
mount --bind "$sbin" /sbin
ended() { # the mount is gone, and nobody has the image
  "$lanefs" check "$img" >/dev/null
  if grep -q " $mnt " /proc/mounts; then exit 1; fi
}
left() { # the table of libmount says nothing of it
  if grep " TARGET=$mnt " /run/mount/utab; then exit 1; fi
}
mount -s -t lanefs -o frobnicate=7,x-systemd.automount "$img" "$mnt"
dd if=/dev/urandom of="$mnt/big" bs=1M count=20 status=none
umount "$mnt" # by root, with an absolute name: see mount.lanefs(8)
ended
left
mount -t lanefs "$img" "$mnt"
dd if=/dev/urandom of="$mnt/big" bs=1M count=20 status=none
umount "$mnt"
ended
left
"$lanefs" mount "$img" "$mnt"
dd if=/dev/urandom of="$mnt/big" bs=1M count=20 status=none
umount "$mnt"
ended
left
mount -t lanefs "$img" "$mnt"
umount mnt
ended
mount -t lanefs "$img" "$mnt"
umount -c "$mnt" # as systemd does
ended
mount -t lanefs "$img" "$mnt"
umount "$img" # by the device
ended
mount -t lanefs "$img" "$mnt"
touch "$mnt/file" file
mount --bind "$mnt/file" file
umount "$PWD/file" >said 2>&1
if [ -s said ]; then echo "umount(8) said:"; cat said; exit 1; fi
umount "$mnt"
ended
mount -t lanefs "$img" "$mnt"
exec 7>"$mnt/open"
if umount mnt 2>err; then echo "a busy mount went"; exit 1; fi
cat err >&2
umount -l "$mnt"
if grep -q " $mnt " /proc/mounts; then exit 1; fi
`, "sh", img, mnt, sbin, p.path("lanefs"))
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "mount is busy")
	p.eventually("the daemon's end", func() bool { _, _, err := p.run("check", img); return err == nil })
	fsck(t, img)
}

// TestHelperStatus: a mount helper ends with the status of mount(8), which hands it on.
func TestHelperStatus(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	for name, want := range map[string]map[string]int{
		"mount.lanefs":       {p.path("none") + " " + mnt: mountFailed, img: mountUsage, img + " " + mnt + " -o frobnicate": mountUsage, img + " " + mnt + " -f -s -o frobnicate": 0},
		"umount.fuse.lanefs": {mnt: mountFailed, mnt + " -f": mountUsage, mnt + " -x": mountUsage},
	} {
		helper := p.path(name)
		require.NoError(t, os.Symlink(p.bin, helper))
		for args, status := range want {
			c := exec.Command(helper, strings.Fields(args)...)
			c.Env = p.env
			out, _ := c.CombinedOutput()
			require.Equal(t, status, c.ProcessState.ExitCode(), "%s %s: %s", name, args, out)
		}
	}
}

// TestUserErrors: what goes wrong for ordinary users is said in the words of the program that knows, with the remedy.
func TestUserErrors(t *testing.T) {
	p := newUserPlace(t)
	if p.cred == nil {
		t.Skip("needs root, to have files that belong to others")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.own(img)
	said := p.fails("mount", img, mnt) // whose mount point is root's
	require.Contains(t, said, "fusermount3: ")
	require.NotContains(t, said, "exit")
	require.Contains(t, said, "must belong to the user")
	require.NotContains(t, p.fails("mount", "-o", "allow_other", img, mnt), "fuse.conf")
	p.own(mnt)
	if conf, _ := os.ReadFile("/etc/fuse.conf"); !strings.Contains("\n"+string(conf), "\nuser_allow_other") {
		require.Contains(t, p.fails("mount", "-o", "allow_other", img, mnt), "needs user_allow_other in /etc/fuse.conf")
	}
	_, said, err := p.run("mount", img, mnt)
	require.NoError(t, err, said)
	require.Contains(t, said, "mkfs.ext4 -E root_owner=65534:65534")
	p.umount(mnt)
	runtime := slices.IndexFunc(p.env, func(e string) bool {
		return strings.HasPrefix(e, "XDG_RUNTIME_DIR=") && strings.HasPrefix(e[16:], p.dir)
	})
	p.env[runtime] = "XDG_RUNTIME_DIR=" + p.path("none")
	require.Contains(t, p.fails("mount", img, mnt), p.path("none")+" must be there and writable: set XDG_RUNTIME_DIR to a directory of your own")
}

// TestWhatIsMissing: without fuse3, and where /run cannot be written, the error names what a mount needs.
func TestWhatIsMissing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	img, mnt, empty := p.image("image", 32), p.mkdir("mnt"), p.mkdir("empty")
	bin := p.path("lanefs") // which the user nobody may execute, and which stays where it is
	b, err := os.ReadFile(p.bin)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(bin, b, 0o755))
	require.NoError(t, os.Chmod(p.dir, 0o755))
	for _, f := range []string{img, mnt, p.path("run")} {
		require.NoError(t, os.Chown(f, nobody, nobody))
	}
	for name, c := range map[string]struct{ script, want string }{
		"no fuse3": {`mount --bind "$3" /usr/local/bin; mount --bind "$3" /usr/bin; PATH= exec "$4/setpriv" --reuid 65534 --regid 65534 --clear-groups "$0" mount "$1" "$2"`,
			"ordinary users mount by fusermount3, which is not installed: install fuse3"},
		"read-only /run": {`mount -t tmpfs -o ro none /run; exec "$0" mount "$1" "$2"`, "read-only file system (/run must be there and writable: in a container"},
	} {
		t.Run(name, func(t *testing.T) {
			tools := t.TempDir()
			setpriv, err := exec.LookPath("setpriv")
			require.NoError(t, err)
			b, err := os.ReadFile(setpriv)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(tools, "setpriv"), b, 0o755))
			cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-e", "-c", c.script, bin, img, mnt, empty, tools)
			cmd.Env, cmd.Dir = p.env, p.dir
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), c.want)
			require.Equal(t, 1, strings.Count(string(out), "\n"), "%s", out)
		})
	}
}
