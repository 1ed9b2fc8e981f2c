package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest/loopmount"
)

// TestMountTwice: the second mount of a device is one more of the same file system. Each goes by itself, in any order; the
// last one closes the device.
func TestMountTwice(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: a second mount of a file system")
	}
	img, a, b, c := p.image("image", 32), p.mkdir("a"), p.mkdir("b"), p.mkdir("c")
	for _, first := range []string{a, b} {
		last := map[string]string{a: b, b: a}[first]
		p.ok("mount", "-o", "commit=20", img, a)
		p.ok("mount", "-o", "nosuid,noexec", img, b)
		ra, err := p.stat(a)
		require.NoError(t, err)
		rb, err := p.stat(b)
		require.NoError(t, err)
		require.Equal(t, ra.PID, rb.PID, "one daemon")
		require.NoError(t, os.WriteFile(filepath.Join(a, "file"), []byte(first), 0o755))
		got, err := os.ReadFile(filepath.Join(b, "file"))
		require.NoError(t, err)
		require.Equal(t, first, string(got))
		ma, err := fs.MountedAt(a)
		require.NoError(t, err)
		mb, err := fs.MountedAt(b)
		require.NoError(t, err)
		require.NotContains(t, ma.Options, "nosuid")
		require.Contains(t, mb.Options, "nosuid")
		require.Contains(t, mb.Options, "noexec")
		require.Empty(t, mb.Optional, "no peer of the first: what is mounted in one is not in the other")

		require.Contains(t, p.fails("mount", img, b), "is busy")
		require.Contains(t, p.fails("mount", "-o", "ro", img, c), fmt.Sprintf("is mounted read-write at %q already", a))
		require.Contains(t, p.fails("mount", "-o", "commit=21", img, c), "with other options (commit)")
		require.Contains(t, p.fails("mount", "-o", "noatime", img, c), "with other options (noatime)")
		require.Contains(t, p.fails("mount", "--foreground", img, c), "nothing to serve")

		_, errs, err := p.run("umount", first)
		require.NoError(t, err, errs)
		require.Contains(t, errs, fmt.Sprintf("the volume stays mounted as %q", last))
		require.False(t, gone(ra.PID))
		require.False(t, p.mounted(first))
		p.ok("mount", img, first) // once more, also where the daemon has its lock
		tool(t, "umount", first)
		p.ok("umount", last)
		p.eventually("the daemon's end", func() bool { return gone(ra.PID) })
		fsck(t, img)
		require.Empty(t, p.leftovers(a))
		require.Empty(t, p.leftovers(b))
	}

	// A signal takes all of them away.
	p.ok("mount", img, a)
	p.ok("mount", img, b)
	r, err := p.stat(b)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(r.PID, unix.SIGTERM))
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	require.False(t, p.mounted(a))
	require.False(t, p.mounted(b))
	fsck(t, img)
}

// TestReplacedImage: an image is replaced by another of its name while it is mounted. A mount of that name is of the new one.
func TestReplacedImage(t *testing.T) {
	p := newPlace(t)
	img, a, b := p.image("image", 32), p.mkdir("a"), p.mkdir("b")
	p.ok("mount", img, a)
	require.NoError(t, os.WriteFile(filepath.Join(a, "who"), []byte("the old one"), 0o644))
	require.NoError(t, os.Rename(img, p.path("old")))
	require.NoError(t, os.Rename(p.image("new", 32), img))
	p.ok("mount", img, b)
	require.NoFileExists(t, filepath.Join(b, "who"))
	require.NoError(t, os.WriteFile(filepath.Join(b, "who"), []byte("the new one"), 0o644))
	c := p.mkdir("c")
	p.ok("mount", p.path("old"), c) // once more, by its new name
	for dir, want := range map[string]string{a: "the old one", b: "the new one", c: "the old one"} {
		got, err := os.ReadFile(filepath.Join(dir, "who"))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	for _, dir := range []string{a, b, c} {
		_, errs, err := p.run("umount", dir)
		require.NoError(t, err, errs)
	}
	fsck(t, img)
	fsck(t, p.path("old"))
}

// TestMountWaits: a mount that follows an unmount which has not ended waits for it, at the same directory and at another.
func TestMountWaits(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: umount(8)")
	}
	img, a, b := p.image("image", 64), p.mkdir("a"), p.mkdir("b")
	for i, next := range []string{a, b, b, a, a} {
		at := map[bool]string{true: a, false: b}[p.mountedOr(a, b, img)]
		require.NoError(t, os.WriteFile(filepath.Join(at, itoa(i)), bytes.Repeat([]byte("x"), 8<<20), 0o644))
		tool(t, "umount", at) // which returns before the daemon has closed the device
		p.ok("mount", img, next)
	}
	last := map[bool]string{true: a, false: b}[p.mounted(a)]
	r, err := p.stat(last)
	require.NoError(t, err)

	// It has a limit. The daemon is stopped, so it does not end.
	p.stop(r.PID)
	tool(t, "umount", "-l", last)
	require.Contains(t, p.fails("mount", "--timeout", "100ms", img, last), fmt.Sprintf("waited 100ms for process %d, which", r.PID))
	require.NoError(t, syscall.Kill(r.PID, unix.SIGCONT))
	p.ok("mount", img, last)

	// umount and mount at once, whichever comes first.
	umount := p.command("umount", last)
	require.NoError(t, umount.Start())
	p.eventually("the unmount is known, or over", func() bool {
		m, err := fs.MountedAt(last)
		return err == nil && (m == nil || leavingIn(p, last))
	})
	p.ok("mount", img, last)
	require.NoError(t, umount.Wait())
	p.ok("umount", last)
	fsck(t, img)
}

// TestMountElsewhere: what keeps a device, or a directory's name, is a mount that is not seen here, or has another name by now. The error says
// where it is.
func TestMountElsewhere(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: mount namespaces")
	}
	img, other, mnt := p.image("image", 32), p.image("other", 32), p.mkdir("mnt")
	c := exec.Command("unshare", "--mount", "sh", "-c", disktest.LetGo+`exec "$0" mount "$1" "$2"`, p.bin, img, mnt)
	c.Env, c.Dir = p.env, p.dir
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	all := daemons()
	at := slices.IndexFunc(all, func(s *served) bool { return s.Dir == mnt })
	require.GreaterOrEqual(t, at, 0)
	pid := all[at].PID
	t.Cleanup(func() {
		if !gone(pid) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	require.False(t, p.mounted(mnt))
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	for _, gate := range strings.Fields(string(children)) { // whatever their numbers are, the daemon is named
		require.True(t, aside("/proc/"+gate))
	}
	require.NoError(t, err)
	require.False(t, aside("/proc/"+itoa(pid)))
	for _, image := range []string{img, other} {
		require.Regexp(t, fmt.Sprintf(`waited 100ms for process %d, .*; it is still mounted in the mount namespace of process %[1]d \(.*\): unmount it there \(.*nsenter --mount --target %[1]d umount %[2]s`, pid, mnt),
			p.fails("mount", "--timeout", "100ms", image, mnt))
	}
	tool(t, "nsenter", "--mount", "--target", itoa(pid), "umount", mnt)
	p.eventually("the daemon's end", func() bool { return gone(pid) })
	fsck(t, img)

	before, after := p.mkdir("before"), p.path("after")
	p.ok("mount", img, p.mkdir("before/mnt"))
	require.NoError(t, os.Rename(before, after))
	again := p.mkdir("before")
	require.NoError(t, os.Mkdir(filepath.Join(again, "mnt"), 0o755))
	require.Contains(t, p.fails("mount", other, filepath.Join(again, "mnt")), fmt.Sprintf("the mount is at %q now: lanefs umount that first", filepath.Join(after, "mnt")))
	p.ok("umount", filepath.Join(after, "mnt"))
	p.ok("mount", other, filepath.Join(again, "mnt"))
	p.ok("umount", filepath.Join(again, "mnt"))
}

// mountedOr says whether a is mounted; if b is not either it mounts a.
func (p *place) mountedOr(a, b, img string) bool {
	p.t.Helper()
	if p.mounted(b) {
		return false
	}
	if !p.mounted(a) {
		p.ok("mount", img, a)
	}
	return true
}

// leavingIn says whether the daemon knows of an unmount. An unmount is so quick that this may never be seen.
func leavingIn(p *place, dir string) bool {
	m, err := fs.MountedAt(dir)
	return err == nil && m != nil && ending(m) != ""
}

// TestOneVolumeOneWriter: an image and a loop device on it are one volume, for LaneFS and for the kernel, in either order.
func TestOneVolumeOneWriter(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: loop devices")
	}
	img, a, b := p.image("image", 32), p.mkdir("a"), p.mkdir("b")
	p.ok("mount", img, a)
	out, err := exec.Command("losetup", "-f", "--show", img).CombinedOutput()
	if err != nil {
		p.ok("umount", a)
		t.Skipf("needs a loop device: %s", out)
	}
	dev := strings.TrimSpace(string(out))
	detach := sync.OnceValue(func() error { return exec.Command("losetup", "-d", dev).Run() }) // then it may be somebody else's
	t.Cleanup(func() { detach() })
	require.Contains(t, p.fails("mount", dev, b), fmt.Sprintf("is in use by the LaneFS mount of %q at %q", img, a))
	require.Contains(t, p.fails("mount", "-o", "ro", dev, b), "in use by the LaneFS mount")
	p.ok("umount", a)
	p.ok("mount", dev, b)
	require.Contains(t, p.fails("mount", img, a), fmt.Sprintf("is in use by the LaneFS mount of %q at %q", dev, b))
	p.ok("umount", b)
	if err := unix.Mount(dev, a, "ext4", 0, ""); err != nil {
		t.Skipf("needs ext4 in the kernel: %v", err)
	}
	defer unix.Unmount(a, unix.MNT_DETACH)
	require.Contains(t, p.fails("mount", img, b), fmt.Sprintf("%s, which is mounted at %q", dev, a))
	require.Contains(t, p.fails("mount", dev, b), fmt.Sprintf("the kernel, which has it mounted at %q", a))
	require.NoError(t, detach()) // when its last user has gone
	require.NoError(t, loopmount.Unmount(a))
	fsck(t, img)
}

// TestNotServed: a mount that came up and cannot be served goes, though a program has entered it, before its volume is closed.
func TestNotServed(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: /run/lanefs-share")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	inTheWay := shareSocket(mnt, true)
	require.NoError(t, makeShareDir(filepath.Dir(inTheWay)))
	require.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "full"), 0o755)) // what cannot be replaced by a socket
	t.Cleanup(func() { os.RemoveAll(inTheWay) })
	var outside unix.Stat_t
	require.NoError(t, unix.Stat(mnt, &outside))
	in := make(chan int, 1)
	stop := make(chan struct{})
	go func() {
		for {
			fd, err := unix.Open(mnt, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			var st unix.Stat_t
			if err == nil && unix.Fstat(fd, &st) == nil && st.Dev != outside.Dev {
				in <- fd
				return
			}
			unix.Close(fd)
			select {
			case <-stop:
				in <- -1
				return
			default:
			}
		}
	}()
	require.Contains(t, p.fails("mount", "--gpu", "host", "-o", "vram=8M", img, mnt), "socket")
	require.False(t, p.mounted(mnt))
	close(stop)
	if fd := <-in; fd >= 0 {
		unix.Close(fd)
	} else {
		t.Log("no program was quick enough to enter the mount")
	}
	fsck(t, img)
	require.NoError(t, os.RemoveAll(inTheWay))
	p.ok("mount", "--gpu", "host", "-o", "vram=8M", img, mnt)
	p.ok("umount", mnt)
}

// TestNumberUsedAgain: the mount of a daemon is known by more than its number, which the kernel gives away again when the mount has gone,
// whether the daemon lives or not. Else a second mount of its device would be one of another volume.
func TestNumberUsedAgain(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 16), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	locks := 0
	for _, f := range p.leftovers(mnt) {
		s := readServed(f)
		if s == nil || s.Device != img {
			continue
		}
		locks++
		require.Len(t, s.mounts(), 1)
		s.Device = p.path("other")
		require.Empty(t, s.mounts())
	}
	require.Equal(t, 1, locks)
	p.ok("umount", mnt)
}
