package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestKilledDaemon leaves stale mounts, which the next mount and umount clear away.
func TestKilledDaemon(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	kill := func() {
		r, err := p.stat(mnt)
		require.NoError(t, err)
		p.kill(r.PID)
		require.True(t, fs.Dead(mnt))
	}
	p.ok("mount", img, mnt)
	kill()
	require.Contains(t, p.fails("stat", mnt), "does not answer")
	p.ok("mount", img, mnt)
	m, err := exec.Command("grep", "-c", " "+mnt+" ", "/proc/self/mountinfo").Output()
	require.NoError(t, err)
	require.Equal(t, "1\n", string(m), "the stale mount is gone, not covered")
	kill()
	_, errs, err := p.run("umount", mnt)
	require.NoError(t, err, errs)
	require.Contains(t, errs, "its daemon was dead")
	require.False(t, p.mounted(mnt))
	p.ok("mount", img, mnt)
	p.ok("umount", mnt)
}

// TestUmountOfNewMount: the kernel shows a mount before its daemon listens. An unmount that comes then waits for that.
func TestUmountOfNewMount(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	socket := filepath.Join(runDirs(os.Geteuid())[0], runName(mnt)+socketEnd)
	require.NoError(t, os.Rename(socket, socket+".aside"))
	t.Cleanup(func() { os.Remove(socket + ".aside") })
	require.Contains(t, p.fails("umount", "--timeout", "100ms", mnt), "its daemon does not answer", "it waits no longer than it may")
	back := time.AfterFunc(300*time.Millisecond, func() { os.Rename(socket+".aside", socket) })
	defer back.Stop()
	p.ok("umount", mnt)
	require.False(t, p.mounted(mnt))
	fsck(t, img)
}

func TestUmountBusy(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	f, err := os.Create(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	require.Contains(t, p.fails("umount", mnt), "busy")
	_, err = f.WriteString("still works")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	p.ok("umount", mnt)
	fsck(t, img)
}

// TestUmountByOthers: the mount goes by umount(8) and by fusermount3, of which the daemon hears afterwards. It writes out and ends.
func TestUmountByOthers(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: umount(8)")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	for _, by := range [][]string{{"umount", mnt}, {"fusermount3", "-u", mnt}, {"umount", "-l", mnt}} {
		p.ok("mount", img, mnt)
		r, err := p.stat(mnt)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(mnt, "f"), bytes.Repeat([]byte("x"), 1<<20), 0o644))
		tool(t, by[0], by[1:]...)
		p.eventually("the daemon's end", func() bool { return gone(r.PID) })
		fsck(t, img)
	}
}

// holdMounts has another mount namespace take copies of the mounts that are there, until let is called, or for two minutes. pid is the process there.
func holdMounts(t *testing.T) (pid int, let func()) {
	t.Helper()
	if root, err := fs.MountedAt("/"); err != nil || root == nil || os.Geteuid() != 0 {
		t.Skip("needs root, and / to be a mount, which it is not in a chroot: unshare -m")
	}
	holder := exec.Command("unshare", "--mount", "sh", "-c", disktest.LetGo+"echo; exec sleep 600")
	out, err := holder.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, holder.Start())
	let = sync.OnceFunc(func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	})
	limit := time.AfterFunc(2*time.Minute, let)
	t.Cleanup(func() {
		limit.Stop()
		let()
	})
	_, err = out.Read(make([]byte, 1)) // it has its namespace
	require.NoError(t, err)
	return holder.Process.Pid, let
}

// TestUmountHeld: another mount namespace has a copy of the mount. The command names a process that sees it, and waits for its end.
func TestUmountHeld(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	var said bytes.Buffer
	holder, let := holdMounts(t)

	umount := p.command("umount", mnt)
	told, err := umount.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, umount.Start())
	line, err := bufio.NewReader(io.TeeReader(told, &said)).ReadString('\n')
	require.NoError(t, err, said.String())
	require.Contains(t, line, fmt.Sprintf("process %d (sleep)", holder))
	let()
	require.NoError(t, umount.Wait())
	fsck(t, img)
}

// TestSignalHeld: another mount namespace has a copy of the mount. A signal unmounts here, the log says what the daemon waits for, and everything is
// written out: it may be killed then.
func TestSignalHeld(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	for _, kill := range []bool{false, true} {
		p.ok("mount", "-o", "commit=300,log="+p.path("log"), img, mnt)
		r, err := p.stat(mnt)
		require.NoError(t, err)
		_, let := holdMounts(t)
		name := filepath.Join(mnt, fmt.Sprint(kill))
		require.NoError(t, os.WriteFile(name, []byte("before the signal"), 0o644))
		require.NoError(t, syscall.Kill(r.PID, unix.SIGTERM))
		p.eventually("the log's word", func() bool { return gone(r.PID) || strings.Contains(p.daemonLog("log"), "the unmount waits") })
		require.False(t, p.mounted(mnt))
		require.False(t, gone(r.PID))
		if kill {
			p.kill(r.PID)
		}
		let()
		p.eventually("the daemon's end", func() bool { return gone(r.PID) })
		require.NoError(t, os.Remove(p.path("log")))
		p.ok("mount", img, mnt)
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, "before the signal", string(got))
		p.ok("umount", mnt)
		fsck(t, img)
	}
}

// TestUmountNamesBindMounts: a file of the mount is bind-mounted elsewhere. Both commands say what it is.
func TestUmountNamesBindMounts(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: bind mounts")
	}
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("x"), 0o644))
	bound := p.path("bound")
	bind := func() {
		require.NoError(t, os.WriteFile(bound, nil, 0o644))
		require.NoError(t, unix.Mount(filepath.Join(mnt, "file"), bound, "", unix.MS_BIND, ""))
	}
	bind()
	t.Cleanup(func() { unix.Unmount(bound, unix.MNT_DETACH) })
	_, errs, err := p.run("umount", bound)
	require.NoError(t, err, errs)
	require.Contains(t, errs, fmt.Sprintf("%q is unmounted", bound))
	require.Contains(t, errs, fmt.Sprintf("stays mounted as %q", mnt))
	require.False(t, p.mounted(bound))

	bind()
	st, err := p.stat(bound) // its daemon is found by the device number
	require.NoError(t, err)
	require.Equal(t, r.PID, st.PID)
	_, errs, err = p.run("umount", "--timeout", "2s", mnt) // enough for a busy machine to get as far as waiting
	require.Error(t, err)
	name := fmt.Sprintf("the bind mount %q of its %q", bound, "/file")
	require.Contains(t, errs, fmt.Sprintf("%q: still waiting for an unmount of %s", mnt, name))
	require.Contains(t, errs, "has not ended after 2s: it waits for an unmount of "+name)
	require.False(t, p.mounted(mnt))
	p.ok("umount", bound) // the last of them: the device is closed
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	fsck(t, img)
}

// TestMountWhileUnmounting: an unmount is under way from its first request on, before it writes anything out, so that a mount that comes
// in the middle waits for its end and is not told that the mount point is busy.
func TestMountWhileUnmounting(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	m, err := fs.MountedAt(mnt)
	require.NoError(t, err)
	sockets, _ := controlSockets(m)
	require.Len(t, sockets, 1)
	real := sockets[0] + ".real" // the command connects to the test, which hands everything on and looks at it
	require.NoError(t, os.Rename(sockets[0], real))
	l, err := net.Listen("unix", sockets[0])
	require.NoError(t, err)
	defer l.Close()
	was := make(chan bool, 1) // whether it is under way, at the request for writing everything out
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("unix", real)
				if err != nil {
					return
				}
				defer to.Close()
				line, err := bufio.NewReader(from).ReadBytes('\n')
				if err != nil {
					return
				}
				var req request
				if json.Unmarshal(line, &req) == nil && req.Op == "settle" {
					was <- ending(m) != ""
				}
				if _, err := to.Write(line); err == nil {
					_, _ = io.Copy(from, to)
				}
			}()
		}
	}()
	p.ok("umount", mnt)
	require.True(t, <-was)
	fsck(t, img)
}

// TestMountOfStopped: a mount of what a daemon serves that does not answer waits for it, no longer than it may.
func TestMountOfStopped(t *testing.T) {
	p := newPlace(t)
	img, mnt, other := p.image("image", 32), p.mkdir("mnt"), p.mkdir("other")
	p.ok("mount", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	p.stop(r.PID)
	for _, at := range []string{other, mnt} {
		require.Contains(t, p.fails("mount", "--timeout", "100ms", img, at), fmt.Sprintf("waited 100ms for the daemon of %q, which does not answer", mnt))
	}
	require.NoError(t, unix.Kill(r.PID, unix.SIGCONT))
	if os.Geteuid() == 0 {
		p.ok("mount", img, other)
		p.umount(other)
	}
	p.umount(mnt)
}

// TestMountOfHidden: a device that is mounted in another mount namespace is in use, and the error says where.
func TestMountOfHidden(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	c := exec.Command("unshare", "--mount", "sh", "-e", "-c", disktest.LetGo+`"$1" mount "$2" "$3"; echo; read end || true; "$1" umount "$3"`, "sh", p.bin, img, mnt)
	c.Env = p.env
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	said := p.fails("mount", "--timeout", "100ms", img, mnt)
	in.Close()
	require.NoError(t, c.Wait())
	require.Contains(t, said, "still mounted in the mount namespace of")
	p.ok("mount", img, mnt)
	p.umount(mnt)
}

// TestUmountLazy takes a mount away that is in use.
func TestUmountLazy(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	f, err := os.Create(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	p.ok("umount", "--lazy", mnt)
	require.False(t, p.mounted(mnt))
	_, err = f.WriteString("still works")
	require.NoError(t, err)
	require.False(t, gone(r.PID))
	require.NoError(t, f.Close())
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	fsck(t, img)
}

// TestStopped: a daemon that is stopped is waited for as long as was said, and named, with what has it go on.
func TestStopped(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	p.stop(r.PID)
	remedy := "that process is stopped: kill -CONT " + itoa(r.PID) + " has it go on"
	require.Contains(t, p.fails("umount", "--timeout", "200ms", mnt), "it waits for its daemon, which does not answer; "+remedy)
	require.Contains(t, p.fails("mount", "--timeout", "200ms", img, p.mkdir("other")), remedy)
	require.NoError(t, fs.Detach(mnt))
	require.Contains(t, p.fails("mount", "--timeout", "200ms", img, mnt), "is ending; "+remedy) // whose mount is gone
	require.NoError(t, syscall.Kill(r.PID, unix.SIGCONT))
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	p.ok("mount", img, mnt)
	p.ok("umount", mnt)
}

// stop stops a daemon until it is sent SIGCONT, or the test ends. It returns when all threads have stopped: until then one may do what it is about to
// do, such as to take libmount's lock, without which no umount(8) ends.
func (p *place) stop(pid int) {
	p.t.Helper()
	require.NoError(p.t, syscall.Kill(pid, unix.SIGSTOP))
	p.t.Cleanup(func() { syscall.Kill(pid, unix.SIGCONT) })
	p.eventually("all its threads to stop", func() bool {
		threads, _ := filepath.Glob(filepath.Join("/proc", itoa(pid), "task/*/stat"))
		for _, f := range threads {
			if b, err := os.ReadFile(f); err == nil && !bytes.Contains(b, []byte(") T ")) {
				return false
			}
		}
		return true
	})
}

func TestSignals(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	start := func() int {
		p.ok("mount", img, mnt)
		r, err := p.stat(mnt)
		require.NoError(t, err)
		return r.PID
	}
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGINT} {
		pid := start()
		require.NoError(t, os.WriteFile(filepath.Join(mnt, "f"), []byte(sig.String()), 0o644))
		require.NoError(t, syscall.Kill(pid, sig))
		p.eventually("the daemon's end", func() bool { return gone(pid) })
		require.False(t, p.mounted(mnt))
		fsck(t, img)
	}

	// Busy: the mount leaves the tree at once and lives on for the open file.
	pid := start()
	f, err := os.Create(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, unix.SIGTERM))
	p.eventually("the mount to be detached", func() bool { return !p.mounted(mnt) })
	_, err = f.WriteString("written after the signal")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	p.eventually("the daemon's end", func() bool { return gone(pid) })
	fsck(t, img)
	p.ok("mount", img, mnt)
	b, err := os.ReadFile(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	require.Equal(t, "written after the signal", string(b))
	p.ok("umount", mnt)

	if os.Geteuid() != 0 {
		return
	}
	// Busy and told twice: it ends, and the open file gives an error.
	pid = start()
	f, err = os.Create(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, unix.SIGTERM))
	p.eventually("the mount to be detached", func() bool { return !p.mounted(mnt) })
	require.NoError(t, syscall.Kill(pid, unix.SIGTERM))
	p.eventually("the daemon's end", func() bool { return gone(pid) })
	require.Error(t, f.Sync())
	f.Close()
	fsck(t, img)

	// Both signals come while it is not known yet whether the mount is busy: nothing dead stays in the tree.
	pid = start()
	f, err = os.Create(filepath.Join(mnt, "open"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, unix.SIGTERM))
	require.NoError(t, syscall.Kill(pid, unix.SIGINT))
	p.eventually("the daemon's end", func() bool { return gone(pid) })
	require.False(t, p.mounted(mnt))
	f.Close()
	fsck(t, img)
}

// TestMountedOver: what is mounted over a mount, or over a directory above it, is another's. A daemon that is told to end leaves it
// there, and errors name it.
func TestMountedOver(t *testing.T) {
	p := newPlace(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts")
	}
	img, parent := p.image("image", 32), p.mkdir("parent")
	mnt := p.mkdir("parent/mnt")
	cover := func(dir string) (uncover func()) {
		require.NoError(t, unix.Mount("other", dir, "tmpfs", 0, ""))
		uncover = sync.OnceFunc(func() { _ = unix.Unmount(dir, 0) })
		t.Cleanup(uncover)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "another's"), nil, 0o644))
		return uncover
	}
	for _, dir := range []string{mnt, parent} {
		log := p.path("log")
		p.ok("mount", "-o", "log="+log, img, mnt)
		r, err := p.stat(mnt)
		require.NoError(t, err)
		uncover := cover(dir)
		want := "other of type tmpfs is mounted over it: unmount that first"
		if dir == parent {
			want = fmt.Sprintf("it is hidden by other of type tmpfs, which is mounted at %q: unmount that first", parent)
			for _, args := range [][]string{{"umount", mnt}, {"umount", "--lazy", mnt}} {
				require.Contains(t, p.fails(args...), want)
			}
		}
		require.NoError(t, syscall.Kill(r.PID, unix.SIGTERM))
		p.eventually("the daemon to say why its mount stays", func() bool {
			b, err := os.ReadFile(log)
			said := strings.ReplaceAll(string(b), `\"`, `"`)
			return err == nil && strings.Contains(said, "cannot be detached") && strings.Contains(said, want)
		})
		require.FileExists(t, filepath.Join(dir, "another's"))
		require.False(t, gone(r.PID))
		uncover()
		p.ok("umount", mnt)
		fsck(t, img)
		require.NoError(t, os.Remove(log))
	}
}

func TestForeground(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	c := p.command("mount", "--foreground", img, mnt)
	var out bytes.Buffer
	c.Stderr = &out
	require.NoError(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	p.eventually("the mount", func() bool { r, err := p.stat(mnt); return err == nil && r.PID == c.Process.Pid })
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.NoError(t, <-ended)
	require.Contains(t, out.String(), "msg=mounted")
	require.Contains(t, out.String(), "msg=unmounted")
	require.False(t, p.mounted(mnt))
	require.Empty(t, p.leftovers(mnt))
	fsck(t, img)
}

// TestForegroundLogGone: a daemon whose log was a pipe outlives the pipe's reader, a `| head` or a tee that Ctrl-C ended, say. Before, its next line ended it.
func TestForegroundLogGone(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	r, w, err := os.Pipe()
	require.NoError(t, err)
	c := p.command("mount", "--foreground", img, mnt)
	c.Stderr = w
	require.NoError(t, c.Start())
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	p.eventually("the mount", func() bool { r, err := p.stat(mnt); return err == nil && r.PID == c.Process.Pid })
	require.NoError(t, r.Close())
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("x"), 0o600))
	require.NoError(t, c.Process.Signal(os.Interrupt))
	require.NoError(t, <-ended)
	require.False(t, p.mounted(mnt))
	require.Empty(t, p.leftovers(mnt))
	fsck(t, img)
}

// TestForegroundLogStands: a mount works, and ends, while its log is a pipe that nobody reads.
func TestForegroundLogStands(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	var full [2]int
	require.NoError(t, unix.Pipe2(full[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(full[0])
	for {
		if _, err := unix.Write(full[1], make([]byte, 4096)); err != nil {
			require.Equal(t, unix.EAGAIN, err)
			break
		}
	}
	_, err := unix.FcntlInt(uintptr(full[1]), unix.F_SETFL, 0)
	require.NoError(t, err)
	w := os.NewFile(uintptr(full[1]), "pipe")
	c := p.command("mount", "--foreground", img, mnt)
	c.Stderr = w
	require.NoError(t, c.Start())
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	defer c.Process.Kill()
	p.eventually("the mount", func() bool { r, err := p.stat(mnt); return err == nil && r.PID == c.Process.Pid })
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("x"), 0o600))
	p.ok("umount", mnt)
	require.NoError(t, <-ended)
	require.Empty(t, p.leftovers(mnt))
	fsck(t, img)
}

// nobody is the user of that name.
const nobody = 65534

// newUserPlace is a place in which commands run as nobody, if the test runs as root. It skips the test where nobody cannot mount.
func newUserPlace(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	if os.Geteuid() == 0 {
		// The user nobody must be able to use the binary, the directory and the image.
		b, err := os.ReadFile(p.bin)
		require.NoError(t, err)
		p.bin = p.path("lanefs.test")
		require.NoError(t, os.WriteFile(p.bin, b, 0o755))
		require.NoError(t, os.Chmod(p.dir, 0o755))
		p.cred = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := p.command("version").Run(); err != nil {
			t.Skipf("needs a place from which nobody can run programs: %s: %v", p.dir, err)
		}
	}
	p.own(p.path("run"))
	if st, err := os.Stat("/dev/fuse"); err != nil || st.Mode().Perm()&0o006 != 0o006 {
		t.Skipf("needs /dev/fuse open to everyone (chmod 666), as udev makes it; here it is %v", st.Mode())
	}
	return p
}

// own gives files to the user as whom commands run.
func (p *place) own(paths ...string) {
	p.t.Helper()
	for _, f := range paths {
		require.NoError(p.t, os.Chown(f, p.uid(), p.uid()))
	}
}

// TestUnprivileged mounts as nobody, through fusermount3. It is found without a PATH, too, which mount(8) and umount(8) take from the helpers of
// ordinary users: the daemon of one that mounts, and the command that clears a dead one's mount, run so.
func TestUnprivileged(t *testing.T) {
	p := newUserPlace(t)
	path := func(e string) bool { return strings.HasPrefix(e, "PATH=") }
	t.Run("PATH", func(t *testing.T) { unprivileged(t, p) })
	p.env = slices.DeleteFunc(p.env, path)
	t.Run("no PATH", func(t *testing.T) { unprivileged(t, p) })
}

func unprivileged(t *testing.T, p *place) {
	p.t = t
	name := "image" + strings.ReplaceAll(t.Name(), "/", "-")
	img, mnt := p.image(name, 32, "-E", "root_owner="+itoa(p.uid())+":"+itoa(p.uid())), p.mkdir("on-"+name)
	p.own(img, mnt)
	p.ok("mount", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	if os.Geteuid() == 0 {
		_, err = os.Stat(mnt)
		require.ErrorIs(t, err, unix.EACCES, "without allow_other no other user sees into it, root neither")
	}
	w := exec.Command("sh", "-c", "echo hello > "+mnt+"/f && cat "+mnt+"/f")
	if p.cred != nil {
		w.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	}
	out, err := w.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "hello\n", string(out))
	p.ok("umount", mnt)
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	fsck(t, img)
	p.ok("mount", img, mnt)
	r, err = p.stat(mnt)
	require.NoError(t, err)
	p.kill(r.PID)
	_, errs, err := p.run("umount", mnt)
	require.NoError(t, err, errs)
	p.ok("mount", img, mnt) // replays the journal
	p.ok("umount", mnt)
	fsck(t, img)
}

func (p *place) uid() int {
	if p.cred != nil {
		return int(p.cred.Uid)
	}
	return os.Geteuid()
}

func TestReadAnswer(t *testing.T) {
	answer := func(text string) (said string, err error) {
		var out strings.Builder
		err = readAnswer(strings.NewReader(text), &out)
		return out.String(), err
	}
	said, err := answer("note: one\nnote: two\n\n")
	require.NoError(t, err)
	require.Equal(t, "lanefs: one\nlanefs: two\n", said)
	for text, want := range map[string]string{"\n": "", "no luck\n": "no luck", "note: but\nno luck\n": "no luck"} {
		_, err := answer(text)
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, want)
		require.False(t, errors.Is(err, errDied))
	}
	for _, text := range []string{"", "half a li", "note: and then\n"} {
		_, err := answer(text)
		require.ErrorIs(t, err, errDied)
	}
}
