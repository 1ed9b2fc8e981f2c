// Package looptest gives tests loop devices: block devices over files. A device is detached when its test ends, however it ends; where there can be none the test is skipped.
package looptest

import (
	"os"
	"os/exec"
	"slices"
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
	c := exec.Command("losetup", append(append([]string{"-f", "--show"}, options...), file)...)
	var said strings.Builder // it may warn, too
	c.Stderr = &said
	out, err := c.Output()
	if err != nil {
		t.Skipf("SKIPPED: no loop device: %s", said.String())
	}
	dev = strings.TrimSpace(string(out))
	// The kernel keeps a device's write protection (BLKROSET) when it is detached: the next file that is attached there could not be written to, by whatever program.
	writable := func() { exec.Command("blockdev", "--setrw", dev).Run() }
	if !slices.Contains(options, "-r") {
		writable()
	}
	detach = sync.OnceFunc(func() {
		writable()
		exec.Command("losetup", "-d", dev).Run()
	})
	t.Cleanup(detach)
	return dev, detach
}
