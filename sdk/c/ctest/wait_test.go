package ctest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// TestWait: a program ends waits for a device that does not answer. What the daemon gives too late is given back.
func TestWait(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	test := filepath.Join(t.TempDir(), "testwait")
	run(t, "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", "-o", test, filepath.Join("..", "testwait.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread")
	m := sharetest.New(t, 64*mib, 32*mib)
	content := make([]byte, 2*mib)
	for i := range content {
		content[i] = byte(i % 251)
	}
	f := m.Write("file", content)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	cmd := exec.Command(test, f.Name())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	says := func() string {
		require.True(t, lines.Scan(), "the program ended")
		return lines.Text()
	}
	name, before := says(), m.Share.Usage()
	for ; name != "ok"; name = says() {
		var first atomic.Bool
		held, release := m.Hold(func(q *blockdev.Request) bool { return q.Op == blockdev.OpRead && first.CompareAndSwap(false, true) })
		fmt.Fprintln(in)
		select {
		case <-held:
		case <-time.After(time.Minute):
			require.Fail(t, "no request came to the device", name)
		}
		require.Equal(t, "ended", says(), name)
		release()
		fmt.Fprintln(in)
	}
	require.Equal(t, before, m.Share.Usage(), "a mapping that was given too late is released, too")
	fmt.Fprintln(in)
	require.NoError(t, cmd.Wait())
}

// TestClosed: a program that closes the library's own descriptors, and opens others under their numbers.
func TestClosed(t *testing.T) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	test := filepath.Join(t.TempDir(), "testclose")
	run(t, "cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I..", "-o", test, filepath.Join("..", "testclose.c"), filepath.Join(library(t), "liblanefs.a"), "-pthread")
	m := sharetest.New(t, 64*mib, 32*mib)
	content := make([]byte, 2*mib)
	for i := range content {
		content[i] = byte(i % 251)
	}
	f := m.Write("file", content)
	require.NoError(t, f.Close())
	require.Equal(t, "ok\n", run(t, test, f.Name()))
}
