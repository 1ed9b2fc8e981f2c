package ctest

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/share/sharetest"
)

// onFile makes a program of the package's, and a file on a mount for it.
func onFile(t *testing.T, name, standard string) (m *sharetest.Mount, program, file string) {
	for _, tool := range []string{"cc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: make deps installs it", tool)
		}
	}
	program = filepath.Join(t.TempDir(), name)
	compile(t, program, "cc", "-std="+standard, "-Wall", "-Wextra", "-Werror", "-O1", "-I..", filepath.Join("..", name+".c"), filepath.Join(library(t), "liblanefs.a"), "-pthread")
	m = sharetest.New(t, 64*mib, 32*mib)
	content := make([]byte, 2*mib)
	for i := range content {
		content[i] = byte(i % 251)
	}
	f := m.Write("file", content)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	return m, program, f.Name()
}

// TestWait: a program ends waits for a device that does not answer, and no call but the release of what a hung request uses waits for that. What the daemon gives too late is given back.
func TestWait(t *testing.T) {
	m, test, file := onFile(t, "testwait", "gnu11")
	p := sharetest.Start(t, exec.Command(test, file))
	name, before := p.Says(), m.Share.Usage()
	for ; name != "ok"; name = p.Says() {
		await, release := m.HoldFirst(blockdev.OpRead)
		p.GoOn()
		await(name)
		if name == "release" {
			p.GoOn()
		}
		require.Equal(t, "ended", p.Says(), name)
		release()
		p.GoOn()
	}
	require.Equal(t, before, m.Share.Usage(), "a mapping that was given too late is released, too")
	p.GoOn()
	require.NoError(t, p.Wait())
}

// TestClockSetBack: a wait for another thread's call asks the program also when the machine's clock is set back in the middle of it. It did so again when that clock had caught up.
func TestClockSetBack(t *testing.T) {
	m, test, file := onFile(t, "testclock", "gnu11")
	p := sharetest.Start(t, exec.Command(test, file))
	require.Equal(t, "read", p.Says())
	await, release := m.HoldFirst(blockdev.OpRead)
	p.GoOn()
	await("the thread's read")
	p.GoOn()
	require.Equal(t, "ended", p.Says())
	release()
	p.GoOn()
	require.Equal(t, "ok", p.Says())
	p.GoOn()
	require.NoError(t, p.Wait())
}

// TestClosed: a program that closes the library's own descriptors, and opens others under their numbers.
func TestClosed(t *testing.T) {
	_, test, file := onFile(t, "testclose", "gnu11")
	require.Equal(t, "ok\n", run(t, test, file))
}

// TestSignal: a call from the handler of a signal that has interrupted one of the same stage fails with EDEADLK. It waited for itself, for ever.
func TestSignal(t *testing.T) {
	m, test, file := onFile(t, "testsignal", "gnu11")
	await, release := m.HoldFirst(blockdev.OpRead)
	p := sharetest.Start(t, exec.Command(test, file))
	require.Equal(t, "read", p.Says())
	await("the read")
	p.GoOn()
	require.Equal(t, "handled", p.Says())
	release()
	require.Equal(t, "ok", p.Says())
	require.NoError(t, p.Wait())
}
