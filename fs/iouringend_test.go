package fs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/uring/uringtest"
)

func init() { helpers["read"], helpers["lookup"] = readHelper, lookupHelper }

// readHelper reads a file.
func readHelper(args []string) {
	if _, err := os.ReadFile(args[0]); err != nil {
		die("%v", err)
	}
}

// lookupHelper asks a directory for names that are not there.
func lookupHelper(args []string) {
	for i := range 200 {
		if _, err := os.Lstat(filepath.Join(args[0], fmt.Sprint("other", i))); !os.IsNotExist(err) {
			die("%v", err)
		}
	}
}

// onBoth runs a test on a mount of each transport, which are compared by what the test returns.
func onBoth(t *testing.T, test func(t *testing.T, m *mounted) string) {
	uringtest.Enable(t)
	said := map[IOUring]string{}
	for way, name := range map[IOUring]string{IOUringOff: "fuse", IOUringOn: "io_uring"} {
		t.Run(name, func(t *testing.T) {
			m := newMount(t, Options{IOUring: way})
			_, why := m.srv.Transport()
			require.NoError(t, why)
			said[way] = test(t, m)
		})
	}
	require.Equal(t, said[IOUringOff], said[IOUringOn], "what /dev/fuse does, and rings do")
}

// hanging is a program that reads a file of a device which does not answer.
func hanging(t *testing.T, m *mounted) (reader *exec.Cmd, release func()) {
	write(t, m.path("slow"), strings.Repeat("x", 1<<16))
	f, err := os.Open(m.path("slow"))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	require.NoError(t, f.Close())
	held, release := m.dev.Hold(blockdev.Fault{Op: blockdev.OpRead})
	t.Cleanup(release)
	reader = helper(t, "read", m.path("slow"))
	require.NoError(t, reader.Start())
	select {
	case <-held:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "does not get to the device")
	}
	return reader, release
}

// state is that of a process's threads, one letter each, in order and once; empty: it has ended.
func state(pid int) string {
	var letters [128]bool
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil {
			letters[b[bytes.LastIndexByte(b, ')')+2]&127] = true
		}
	}
	var text string
	for c, there := range letters {
		if there {
			text += string(rune(c))
		}
	}
	return text
}

// TestKilledReader: a program that waits for a device which does not answer is killed. It ends with the device's answer on either
// transport, for the request is with the daemon (fuse(4) calls that waiting it out), and what the kernel sends for it, INTERRUPT, disturbs
// nobody: others are answered meanwhile.
func TestKilledReader(t *testing.T) {
	onBoth(t, func(t *testing.T, m *mounted) string {
		reader, release := hanging(t, m)
		require.NoError(t, reader.Process.Kill())
		others := helper(t, "lookup", m.dir) // not this process: one that is killed while it waits for its own mount never ends
		require.NoError(t, others.Start())
		t.Cleanup(func() { others.Process.Kill() })
		ended := make(chan error, 1)
		go func() { ended <- others.Wait() }()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			release()
			require.FailNow(t, "others wait for a killed program's request")
		}
		waits := ""
		for end := time.Now().Add(time.Minute); waits != "D" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if waits = strings.Trim(state(reader.Process.Pid), "ZX"); waits == "" {
				break // it waits for nothing
			}
		}
		release()
		err := reader.Wait()
		require.ErrorContains(t, err, "killed")
		return waits
	})
}

// TestLazyWhileWaiting: a mount is detached while a request waits for the device. The request is answered when the device is, and then the mount ends.
func TestLazyWhileWaiting(t *testing.T) {
	onBoth(t, func(t *testing.T, m *mounted) string {
		reader, release := hanging(t, m)
		require.NoError(t, Detach(m.dir))
		ended := make(chan struct{})
		go func() {
			m.srv.Wait()
			close(ended)
		}()
		require.NotEmpty(t, state(reader.Process.Pid))
		select {
		case <-ended:
			t.Error("the mount has ended before its last request")
		default:
		}
		release()
		require.NoError(t, reader.Wait())
		<-ended
		return ""
	})
}

// TestAbortedWhileWaiting: the connection of a mount whose device does not answer is aborted. Programs end at once; the server when the device lets go.
func TestAbortedWhileWaiting(t *testing.T) {
	onBoth(t, func(t *testing.T, m *mounted) string {
		reader, release := hanging(t, m)
		require.NoError(t, m.srv.Abort())
		err := reader.Wait()
		require.Error(t, err)
		require.True(t, Dead(m.dir))
		require.NoError(t, Detach(m.dir))
		release()
		m.srv.Wait()
		return ""
	})
}

// TestTwoMounts: two mounts of a process have rings of their own. One goes, the other stays.
func TestTwoMounts(t *testing.T) {
	onBoth(t, func(t *testing.T, m *mounted) string {
		other := newMount(t, m.srv.opt)
		for i := range 50 {
			write(t, m.path(fmt.Sprint(i)), "one")
			write(t, other.path(fmt.Sprint(i)), "two")
		}
		other.unmount()
		b, err := os.ReadFile(m.path("7"))
		require.NoError(t, err)
		return string(b)
	})
}

// TestFusermount: fusermount3 -u ends the mount.
func TestFusermount(t *testing.T) {
	needTool(t, "fusermount3")
	onBoth(t, func(t *testing.T, m *mounted) string {
		write(t, m.path("file"), "x")
		out, err := exec.Command("fusermount3", "-u", m.dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		m.srv.Wait()
		return ""
	})
}
