// Package looptest gives tests loop devices: block devices over files. A device is detached when its test ends, however it ends; where there can be none the test is skipped.
package looptest

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Attach makes a loop device over a file, with options of losetup(8), until detach is called or the test ends. It skips the test where there can be none.
func Attach(t testing.TB, file string, options ...string) (dev string, detach func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: loop devices need root")
	}
	out, err := exec.Command("losetup", append(append([]string{"-f", "--show"}, options...), file)...).CombinedOutput()
	if err != nil {
		t.Skipf("SKIPPED: no loop device: %s", out)
	}
	dev = strings.TrimSpace(string(out))
	detach = sync.OnceFunc(func() { exec.Command("losetup", "-d", dev).Run() })
	t.Cleanup(detach)
	return dev, detach
}
