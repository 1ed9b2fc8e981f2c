package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs"
)

// TestPythonKilled: the daemon is killed while a program reads by all ways of the Python SDK: each fails at once, and gave nothing wrong before.
func TestPythonKilled(t *testing.T) {
	python := ""
	for _, p := range []string{"python3", "/usr/bin/python3"} { // the one that has PyTorch, if any
		if exec.Command(p, "-c", "import torch").Run() == nil {
			python = p
			break
		}
	}
	if python == "" {
		var err error
		if python, err = exec.LookPath("python3"); err != nil {
			t.Skip("needs python3: make deps installs it")
		}
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs cc: make deps installs it")
	}
	p := newPlace(t)
	build := libraries(t)
	img, mnt := p.image("image", 128), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=48M", img, mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	cmd := exec.Command(python, "../../sdk/python/tests/killed.py", mnt)
	cmd.Env = append(os.Environ(), "PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1", libraryOf(build))
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.children = append(p.children, cmd)
	lines := bufio.NewReader(pipe)
	line, _ := lines.ReadString('\n')
	require.Equal(t, "reading\n", line, "%s", &errs)
	require.NoError(t, syscall.Kill(r.PID, syscall.SIGKILL))
	line, _ = lines.ReadString('\n')
	err = cmd.Wait()
	require.NoError(t, err, "%s", &errs)
	require.True(t, strings.HasPrefix(line, "gone"), "%s", &errs)
	t.Log(line)
	require.NoError(t, fs.Detach(mnt))
}
