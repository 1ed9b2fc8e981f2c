package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestVMEndsWithItsScript: however the lab's boot script ends, the virtual machine that it started ends.
func TestVMEndsWithItsScript(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Skip("SKIPPED: no setpriv (util-linux)")
	}
	script, err := filepath.Abs("vm/boot.sh")
	require.NoError(t, err)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			dir := t.TempDir()
			running := filepath.Join(dir, "pid")
			// A machine that runs until it is told to end.
			require.NoError(t, os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\necho $$ >"+running+"\nexec sleep 1000\n"), 0o755))
			boot := exec.Command(script, "kernel", "initramfs", filepath.Join(dir, "log"))
			boot.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+dir)
			require.NoError(t, boot.Start())
			var pid int
			t.Cleanup(func() {
				boot.Process.Kill()
				if pid > 0 {
					syscall.Kill(pid, syscall.SIGKILL)
				}
			})
			require.Eventually(t, func() bool {
				b, _ := os.ReadFile(running)
				pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
				return pid > 0
			}, time.Minute, 5*time.Millisecond)
			require.NoError(t, boot.Process.Signal(sig))
			boot.Wait()
			require.Eventually(t, func() bool {
				st, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
				return err != nil || strings.Contains(string(st), ") Z ")
			}, 10*time.Second, 5*time.Millisecond, "the machine goes on")
		})
	}
}
