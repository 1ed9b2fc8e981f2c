package main

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// given is what the process that receives clients' descriptors may have open: its standard ones, sockets, what Go's poller takes, and
// what aborts the mount's connection.
var given = regexp.MustCompile(`^(/dev/null|pipe:\[\d+\]|socket:\[\d+\]|anon_inode:\[(eventpoll|eventfd)\]|(/sys/fs/fuse/connections)?/\d+/abort)$`)

// TestGateHasNothing: the gate has open what it was given, and may do next to nothing.
func TestGateHasNothing(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=8M", image, dir)
	st, err := p.stat(dir)
	require.NoError(t, err)
	gate := childOf(t, st.PID)
	list, err := os.ReadDir(filepath.Join("/proc", itoa(gate), "fd"))
	require.NoError(t, err)
	abort := false
	for _, fd := range list {
		to, err := os.Readlink(filepath.Join("/proc", itoa(gate), "fd", fd.Name()))
		require.NoError(t, err)
		require.Regexp(t, given, to)
		abort = abort || strings.HasSuffix(to, "/abort")
	}
	require.True(t, abort, "the gate, which sees the daemon die, must be able to end the mount's connection")
	threads, err := filepath.Glob(filepath.Join("/proc", itoa(gate), "task/*/status"))
	require.NoError(t, err)
	for _, name := range threads {
		status, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		require.NoError(t, err)
		for _, want := range []string{`(?m)^CapEff:\s*0+$`, `(?m)^CapPrm:\s*0+$`, `(?m)^NoNewPrivs:\s*1$`, `(?m)^Seccomp:\s*2$`} {
			require.Regexp(t, want, string(status))
		}
	}
	limits, err := os.ReadFile(filepath.Join("/proc", itoa(gate), "limits"))
	require.NoError(t, err)
	for _, want := range []string{`Max core file size\s+0\s+0`, `Max file size\s+0\s+0`, `Max locked memory\s+0\s+0`} {
		require.Regexp(t, want, string(limits))
	}
	env, err := os.ReadFile(filepath.Join("/proc", itoa(gate), "environ"))
	require.NoError(t, err)
	for v := range bytes.SplitSeq(bytes.Trim(env, "\x00"), []byte{0}) {
		require.Regexp(t, `^(LANEFS_GATE|GOTRACEBACK|GODEBUG)`, string(v))
	}
	p.umount(dir)
	p.eventually("the gate ends with the daemon", func() bool { return gone(gate) })
}

// killed kills the daemon of a mount, and wants what a user is promised then: the process ends, and the mount answers, with an error.
func (p *place) killed(dir string, pid int) {
	p.t.Helper()
	var st unix.Stat_t
	require.NoError(p.t, unix.Stat(dir, &st))
	defer func() {
		if !gone(pid) { // the test has failed: the following ones must not wait for it
			_ = os.WriteFile(filepath.Join("/sys/fs/fuse/connections", itoa(int(unix.Minor(st.Dev))), "abort"), []byte("1"), 0)
		}
	}()
	require.NoError(p.t, syscall.Kill(pid, syscall.SIGKILL))
	p.eventually("the daemon ends, with all its threads", func() bool { return gone(pid) })
	answer := make(chan error, 1)
	go func() {
		var st unix.Statfs_t // which the kernel asks for each time
		answer <- unix.Statfs(dir, &st)
	}()
	select {
	case err := <-answer:
		require.ErrorIs(p.t, err, unix.ENOTCONN)
	case <-time.After(5 * time.Minute):
		require.FailNow(p.t, "the mount of a killed daemon hangs")
	}
}

// TestKilledBesideStuckGate: a daemon that dies while its gate is held by a file system that does not answer leaves a mount that answers: nothing
// of the mount's is open in the gate.
func TestKilledBesideStuckGate(t *testing.T) {
	p := newPlace(t)
	image, dir, stuckDir := p.image("image", 128), p.mkdir("mnt"), p.mkdir("stuck")
	p.ok("mount", "--gpu", "host", "-o", "vram=8M", image, dir)
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o644))
	st, err := p.stat(dir)
	require.NoError(t, err)
	gate := childOf(t, st.PID)
	t.Cleanup(func() { fs.Detach(stuckDir) })
	server, says, _ := p.child(beStuck, stuckDir)
	require.Equal(t, "ready", says())
	client, says, _ := p.child(beHostile, path+"\n"+filepath.Join(stuckDir, "file"))
	require.Equal(t, "passed", says())
	p.killed(dir, st.PID)
	require.False(t, gone(gate), "or this test has shown nothing")
	_, _, err = p.run("umount", dir)
	require.NoError(t, err)
	require.NoError(t, server.Kill())
	p.eventually("the gate ends with the file system that does not answer", func() bool { return gone(gate) })
	require.NoError(t, client.Kill())
}

// TestKilledWhileItWaitsForItself: kill -9 of a daemon whose kernel is just writing back what a client passed, or forgetting pages
// that requests are under way for, leaves neither threads nor a mount that hangs.
func TestKilledWhileItWaitsForItself(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 256), p.mkdir("mnt")
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), 7))
	for round := range 8 {
		_, errs, err := p.run("mount", "--gpu", "host", "-o", "writeback_cache,vram=16M", image, dir)
		require.NoError(t, err, errs)
		st, err := p.stat(dir)
		require.NoError(t, err)
		path := filepath.Join(dir, "file")
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{byte(round)}, 24<<20), 0o644))
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		s, err := lanefs.Connect(f)
		require.NoError(t, err)
		b, err := s.MapPrivate(f, 0, 1<<20)
		require.NoError(t, err)
		stop := make(chan struct{})
		ended := make(chan struct{}, 4)
		busy := func(work func(i int) error) {
			defer func() { ended <- struct{}{} }()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if work(i) != nil {
					return
				}
			}
		}
		page, other := make([]byte, 4096), make([]byte, 4096)
		go busy(func(i int) error { _, err := f.WriteAt(page, int64(i%6000)<<12); return err })
		go busy(func(i int) error { _, err := f.ReadAt(other, int64(i*37%6000)<<12); return err })
		go busy(func(i int) error { return b.Commit(f, int64(i%20)<<20, 0, 1<<20) })
		go busy(func(i int) error {
			m, err := s.Map(f, int64(i%6)<<22, 1<<20)
			if err != nil {
				return err
			}
			return m.Close()
		})
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		p.killed(dir, st.PID)
		close(stop)
		for range 4 {
			<-ended
		}
		s.Close()
		f.Close()
	}
	_, errs, err := p.run("mount", "--gpu", "host", image, dir)
	require.NoError(t, err, errs)
	p.umount(dir)
	fsck(t, image)
}

// TestKilledGate: when the gate dies, connections end, the mount goes on, and soon there is another gate.
func TestKilledGate(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=8M,log="+p.path("log"), image, dir)
	st, err := p.stat(dir)
	require.NoError(t, err)
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o644))
	f, err := os.Open(path)
	require.NoError(t, err)
	s, err := lanefs.Connect(f)
	require.NoError(t, err)
	first := childOf(t, st.PID)
	require.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	require.NoError(t, s.Wait(time.Minute), "its clients hear of it")
	s.Close()
	p.eventually("another serves", func() bool {
		s, err := lanefs.Connect(f)
		if err != nil {
			return false
		}
		defer s.Close()
		b, err := s.Map(f, 0, 0)
		return err == nil && string(b.Bytes()) == "content" && b.Close() == nil
	})
	f.Close()
	require.Empty(t, p.residents(dir).Residents[0].Holders)
	second := childOf(t, st.PID)
	require.NotEqual(t, first, second)
	require.Contains(t, p.daemonLog("log"), "starting another process")
	p.umount(dir)
	p.eventually("it ends with the daemon", func() bool { return gone(second) })
	require.Empty(t, p.leftovers(dir), "no socket is left")
	fsck(t, image)
}
