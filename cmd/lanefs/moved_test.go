package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// movable is a directory below which mounts can be moved: one below a shared mount cannot.
func (p *place) movable(name string) string {
	dir := p.mkdir(name)
	require.NoError(p.t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	p.t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	require.NoError(p.t, unix.Mount("", dir, "", unix.MS_PRIVATE, ""))
	for _, sub := range []string{"a", "b", "c", "up", "up/mnt"} {
		p.mkdir(filepath.Join(name, sub))
	}
	return dir
}

// TestMoved: commands say where a mount is, and not where it was mounted: after mount --move and a rename of a directory above it, by a bind mount, and in another mount namespace.
// What its daemon has is its own all the same, and goes with it.
func TestMoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts are moved")
	}
	p := newPlace(t)
	img, other, dir := p.image("image", 32), p.image("other", 32), p.movable("dir")
	a, b, c, up, down := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c"), filepath.Join(dir, "up"), filepath.Join(dir, "down")
	at := func(where string) int {
		t.Helper()
		require.Contains(t, p.ok("stat", where), " on "+where+" ")
		require.Contains(t, p.ok("top", "--count", "1", where), "read")
		r, err := p.stat(where)
		require.NoError(t, err)
		require.Equal(t, where, r.Dir)
		return r.PID
	}
	table := func() string {
		all, err := os.ReadFile("/run/mount/utab")
		require.NoError(t, err)
		return string(all)
	}

	p.ok("mount", img, a)
	tool(t, "mount", "--move", a, b)
	pid := at(b)
	require.Contains(t, p.fails("stat", a), "is not a mount point")
	require.Contains(t, p.fails("umount", a), "is not a mount point")
	require.Contains(t, p.fails("mount", other, a), "the mount is at \""+b+"\" now: lanefs umount that first")
	tool(t, "mount", "--bind", b, c)
	require.Equal(t, pid, at(c))
	p.ok("umount", "--quiet", c)
	where := map[string]bool{}
	for _, mnt := range []string{b, a} {
		where[mnt] = served8(mnt)
	}
	require.Equal(t, map[string]bool{b: true, a: true}, where, "its entry in libmount's table stays, wherever that has it")
	p.ok("umount", b)
	require.NotContains(t, table(), dir)
	require.Empty(t, p.leftovers(a))
	fsck(t, img)

	p.ok("mount", img, filepath.Join(up, "mnt"))
	require.NoError(t, os.Rename(up, down))
	at(filepath.Join(down, "mnt"))
	p.ok("umount", filepath.Join(down, "mnt"))
	require.NotContains(t, table(), dir)

	p.ok("mount", img, a)
	tool(t, "mount", "--move", a, b)
	p.kill(at(b))
	m, err := fs.MountedAt(b)
	require.NoError(t, err)
	require.True(t, fs.Dead(m.Mountpoint))
	p.ok("mount", img, c)
	_, said, err := p.run("umount", b)
	require.NoError(t, err, said)
	require.Contains(t, said, "its daemon was dead")
	require.Contains(t, table(), " TARGET="+c+" ", "the mount at c has its entry still")
	p.ok("umount", c)
	for _, name := range p.leftovers(a) {
		require.Equal(t, logEnd, filepath.Ext(name), "the log may say why it died")
	}
	require.NotContains(t, table(), dir)

	p.ok("mount", img, a)
	cmd := exec.Command("unshare", "--mount", "sh", "-e", "-c", disktest.LetGo+`mount --move "$1" "$2"; echo moved; read end`, "sh", a, c)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	moved := make([]byte, 6)
	_, err = out.Read(moved)
	require.NoError(t, err)
	require.Equal(t, "moved\n", string(moved))
	pid = at(a)
	_, errs, err := p.run("umount", "--timeout", "2s", a)
	require.Error(t, err, errs)
	require.Contains(t, p.fails("mount", "--timeout", "100ms", img, a), "nsenter --mount --target "+itoa(cmd.Process.Pid)+" umount "+c)
	require.NoError(t, in.Close())
	_ = cmd.Wait()
	p.eventually("the daemon's end", func() bool { return gone(pid) })
	require.NotContains(t, table(), dir)
	fsck(t, img)
}
