package uring

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRoom: too few threads are found before there are any, in either version of control groups and in any group above; what cannot be
// read limits nothing.
func TestRoom(t *testing.T) {
	set := func(root, name, text string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	for version, v := range map[string]struct{ line, dir string }{
		"one": {"11:pids:/a/b\n10:cpu,cpuacct:/\n0::/c\n", "sys/fs/cgroup/pids/"},
		"two": {"0::/a/b\n", "sys/fs/cgroup/"},
	} {
		root := t.TempDir()
		require.NoError(t, room(root, 1000), version)
		set(root, "proc/self/cgroup", v.line)
		require.NoError(t, room(root, 1000), version)
		set(root, v.dir+"a/b/pids.max", "max\n")
		set(root, v.dir+"a/b/pids.current", "9\n")
		require.NoError(t, room(root, 1000), version)
		set(root, v.dir+"a/pids.max", "100\n")
		set(root, v.dir+"a/pids.current", "50\n")
		require.NoError(t, room(root, 100-50), version)
		err := room(root, 100-50+1)
		require.EqualError(t, err, "the control group /a has 50 threads, and may have 100; 51 more are needed "+
			"(raise pids.max: --pids-limit of a container, TasksMax of a unit)", version)
	}
}

// TestThreadsOf counts the threads of one user.
func TestThreadsOf(t *testing.T) {
	root := t.TempDir()
	for pid, tasks := range map[int]int{1: 1, 22: 3, 333: 1} {
		for i := range tasks {
			require.NoError(t, os.MkdirAll(filepath.Join(root, fmt.Sprintf("proc/%d/task/%d", pid, pid+i)), 0o755))
		}
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/self/task/1"), 0o755))
	require.Equal(t, 5, threadsOf(root, uint32(os.Getuid())))
	require.Zero(t, threadsOf(root, uint32(os.Getuid())+1))
}

// TestBecause: what the kernel refuses has a remedy.
func TestBecause(t *testing.T) {
	for errno, want := range map[unix.Errno]string{
		unix.EPERM: "let the container use io_uring_setup", unix.ENOSYS: "let the container use io_uring_setup", unix.EMFILE: "raise ulimit -n",
		unix.EINVAL: "Linux 6.14", unix.ENOMEM: "no memory",
	} {
		err := because(os.NewSyscallError("io_uring_setup", errno))
		if there := Check("/"); there != nil && (errno == unix.EPERM || errno == unix.ENOSYS) {
			require.Equal(t, there, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, errno)
	}
}
