package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// attach has gdb attach to a process, list its threads and go. What hangs is killed after a minute.
func attach(pid int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "gdb", "-nx", "-batch", "-p", strconv.Itoa(pid), "-ex", "info threads").CombinedOutput()
	return string(out), err
}

// TestGDB: a debugger attaches to a daemon, whose mount goes on afterwards. gdb opens the objects of the loader's list by their names: that of
// the kernels was below /proc/self, where gdb found a pipe of its own, and read it for ever with the daemon stopped.
func TestGDB(t *testing.T) {
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skip("SKIPPED: gdb is not installed: apt-get install gdb")
	}
	other := exec.Command("sleep", "300")
	require.NoError(t, other.Start())
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	if out, err := attach(other.Process.Pid); err != nil {
		t.Skipf("SKIPPED: gdb cannot attach to a process here: %v\n%s", err, out)
	}
	p := newPlace(t)
	image, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", image, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	defer unix.Kill(r.PID, unix.SIGCONT) // gdb killed in the middle leaves it stopped
	out, err := attach(r.PID)
	require.NoError(t, err, out)
	require.Contains(t, out, "Thread")
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), []byte("goes on"), 0o600))
	p.ok("umount", mnt)
	fsck(t, image)
}
