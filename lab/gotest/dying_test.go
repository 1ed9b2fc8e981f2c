package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const beItsOwn = "LANEFS_TEST_BE_ITS_OWN" // a directory: the test's process mounts a file system there that does not answer, and waits for it

func TestMain(m *testing.M) {
	if dir := os.Getenv(beItsOwn); dir != "" {
		fmt.Println(waitForItself(dir))
		return
	}
	os.Exit(m.Run())
}

// silent never answers a GETATTR.
type silent struct {
	fuse.RawFileSystem
	asked chan struct{}
	once  sync.Once
}

func (s *silent) GetAttr(<-chan struct{}, *fuse.GetAttrIn, *fuse.AttrOut) fuse.Status {
	s.once.Do(func() { close(s.asked) })
	select {}
}

func waitForItself(dir string) error {
	s := &silent{RawFileSystem: fuse.NewDefaultRawFileSystem(), asked: make(chan struct{})}
	server, err := fuse.NewServer(s, dir, &fuse.MountOptions{DirectMount: true, FsName: "silent", Name: "silent"})
	if err != nil {
		return err
	}
	go server.Serve()
	go func() {
		var st unix.Stat_t
		_ = unix.Stat(dir, &st)
	}()
	<-s.asked
	fmt.Println("waits")
	select {}
}

// TestFreeDying: a process that waits for a file system of its own does not end when it is killed, is found, and ends.
func TestFreeDying(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := withConnections(func() {}); err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), beItsOwn+"="+dir)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var number string
	ended := make(chan struct{})
	wait := sync.OnceFunc(func() {
		go func() { _ = cmd.Wait(); close(ended) }()
	})
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = withConnections(func() { _ = os.WriteFile(filepath.Join(connections, number, "abort"), []byte("1"), 0) })
		wait()
		select {
		case <-ended:
		case <-time.After(time.Minute):
		}
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	line := make([]byte, 64)
	n, err := out.Read(line)
	require.NoError(t, err)
	if string(line[:n]) != "waits\n" {
		t.Skipf("no FUSE here: %s", line[:n])
	}
	number = numberOf(t, dir)
	require.NoError(t, withConnections(func() { require.Contains(t, waiting(connections), number) }))
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	pid := strconv.Itoa(cmd.Process.Pid)
	require.Eventually(t, func() bool { return dying("/proc")[pid] }, time.Minute, 20*time.Millisecond, "it waits")
	wait()
	select {
	case <-ended:
		require.FailNow(t, "it has ended by itself: there is nothing to be mended")
	case <-time.After(time.Second):
	}
	// Only this one: other tests that run now have requests that wait, too.
	var said bytes.Buffer
	stop := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(over)
		freeDying(&said, func() []string { return []string{number} }, 100*time.Millisecond, 10*time.Millisecond, stop)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		require.FailNow(t, "it does not end")
	}
	close(stop)
	<-over
	require.Contains(t, said.String(), "gotest: process "+pid+" was killed and waits in the kernel since 100ms; FUSE connections with requests that wait are aborted: "+number)
}

// TestDying: of a tree like /proc, those with a killed thread that waits.
func TestDying(t *testing.T) {
	root := t.TempDir()
	status := func(name, state, pending string) {
		dir := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), []byte("Name:\tx\nState:\t"+state+"\nSigPnd:\t"+pending+"\nShdPnd:\t0000000000000100\n"), 0o644))
	}
	status("7/task/7", "Z (zombie)", "0000000000000000")
	status("7/task/9", "D (disk sleep)", "0000000000000100")
	status("8/task/8", "D (disk sleep)", "0000000000000000")
	status("9/task/9", "S (sleeping)", "0000000000000100")
	require.Equal(t, map[string]bool{"7": true}, dying(root))
	for n, text := range map[string]string{"40": "0\n", "41": "3\n"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "c", n), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, "c", n, "waiting"), []byte(text), 0o644))
	}
	require.Equal(t, []string{"41"}, waiting(filepath.Join(root, "c")))
}

// numberOf is the number of the FUSE connection of a mount. It must not be asked of the mount, which does not answer.
func numberOf(t *testing.T, dir string) string {
	t.Helper()
	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return strconv.Itoa(found[0].Minor)
}
