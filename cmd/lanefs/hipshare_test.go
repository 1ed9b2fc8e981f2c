package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/lab/csdk"
)

// Programs that have files of a mount as memory of an AMD GPU: every way in which that leaves the daemon, in Go, C and
// Python, on the stand-in for ROCm. Daemon and programs are processes of their own, as they are with a GPU. Make test
// takes one of the four ways.
func TestHIPShare(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("the stand-in for ROCm needs gcc: apt-get install gcc libc6-dev")
	}
	build, inC := libraries(t), filepath.Join(t.TempDir(), "testgpu")
	tool(t, cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I../../sdk/c", "-o", inC, "../../sdk/c/testgpu.c", filepath.Join(build, "liblanefs.a"), "-pthread", "-ldl")
	for k, c := range []struct {
		name, rocm string
		env        []string
		kind       gpu.ExportKind
	}{
		{"VMM", "", nil, gpu.ExportPOSIX},
		{"VMM of ROCm 6.4", "6.4", []string{"LANEFS_SHIM_NO_WAIT=1"}, gpu.ExportPOSIX},
		{"DMA-BUF", "", []string{"LANEFS_SHIM_NO_VMM=1"}, gpu.ExportDMABUF},
		{"IPC", "", []string{"LANEFS_SHIM_NO_VMM=1", "LANEFS_SHIM_NO_DMABUF=1"}, gpu.ExportIPC},
	} {
		if !disktest.Turn(k, 4) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := newHIPPlace(t, c.rocm, append(c.env, libraryOf(build))...)
			img, mnt := p.image("image", 128), p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip", "-o", "vram=48M", img, mnt)
			path := filepath.Join(mnt, "weights")
			content := make([]byte, 6<<20+123)
			fill := rand.NewChaCha8([32]byte{6})
			fill.Read(content)
			require.NoError(t, os.WriteFile(path, content, 0o644))

			holder := p.client(path)
			require.Equal(t, fmt.Sprintf("%s, %d bytes\n", c.kind, len(content)), holder.ask("map"))
			other := p.client(path)
			require.Equal(t, holder.line, other.ask("map"))
			s := p.residents(mnt)
			require.EqualValues(t, 1, s.Loads, "one load for two processes")
			require.Equal(t, 2, s.Residents[0].Holders)
			require.Equal(t, "byte 77\n", other.ask("scribble"))
			require.Equal(t, "byte 77\n", holder.ask("look"), "both processes have one memory")
			require.Equal(t, "ok\n", other.ask("ring"))
			require.Equal(t, "ok\n", other.ask("stage"))
			require.Equal(t, "ok\n", other.ask("close under a copy"))
			other.end()
			require.Equal(t, "ok\n", p.program(nil, inC, path, itoa(int(c.kind))))
			if python, err := exec.LookPath("python3"); err == nil { // a skip where it is missing is sdk/python's to say
				p.program([]string{"PYTHONPATH=../../sdk/python", "PYTHONDONTWRITEBYTECODE=1", "LANEFS_TEST_DIR=" + mnt, "LANEFS_TEST_KIND=" + itoa(int(c.kind))},
					python, "../../sdk/python/tests/test_hip.py")
			}
			require.Regexp(t, `rings moved .* [1-9]\d* requests straight .* [1-9]\d* through stages`, p.ok("vram", "ls", mnt))
			require.NoError(t, holder.cmd.Process.Kill())
			_ = holder.cmd.Wait()
			p.eventually("the daemon forgets a killed client", func() bool { return p.residents(mnt).Residents[0].Holders == 0 })

			p.onMedium(img, mnt, path, ringed(content))
		})
	}
}

// libraries is the folder with the C library.
func libraries(t *testing.T) string {
	t.Helper()
	dir, err := csdk.C()
	require.NoError(t, err)
	return dir
}

// libraryOf has programs find the C library that was made in build.
func libraryOf(build string) string {
	return "LANEFS_LIBRARY=" + filepath.Join(build, "liblanefs.so.1.0.0")
}

// onMedium unmounts, and finds that what came from device memory is in the file at path of the volume.
func (p *place) onMedium(img, mnt, path string, want []byte) {
	p.t.Helper()
	p.ok("umount", mnt)
	fsck(p.t, img)
	p.ok("mount", "--gpu", "host", img, mnt)
	got, err := os.ReadFile(path)
	require.NoError(p.t, err)
	require.True(p.t, bytes.Equal(want, got), "what came from device memory is on the medium")
	p.ok("umount", mnt)
}

// program runs another program in the place's environment, and gives what it prints.
func (p *place) program(env []string, name string, args ...string) string {
	p.t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(p.env[:len(p.env):len(p.env)], env...)
	out, err := c.CombinedOutput()
	require.NoError(p.t, err, "%s %q:\n%s", name, args, out)
	return string(out)
}

// clientProcess is a client (see client) that does one thing after the other.
type clientProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	line string // of the last answer
	errs bytes.Buffer
}

func (p *place) client(path string) *clientProcess {
	p.t.Helper()
	c := &clientProcess{t: p.t, cmd: exec.Command(p.bin)}
	c.cmd.Env, c.cmd.Stderr = append(p.env[:len(p.env):len(p.env)], beClient+"="+path), io.MultiWriter(os.Stderr, &c.errs)
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(p.t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(p.t, err)
	c.out = bufio.NewReader(out)
	require.NoError(p.t, c.cmd.Start())
	p.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

func (c *clientProcess) ask(what string) string {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, what)
	require.NoError(c.t, err)
	c.line, err = c.out.ReadString('\n')
	require.NoError(c.t, err, "%s: %q", what, c.line)
	return c.line
}

// fails wants the client to end with an error, and gives that.
func (c *clientProcess) fails(what string) string {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, what)
	require.NoError(c.t, err)
	line, err := c.out.ReadString('\n')
	require.Error(c.t, err, "%s: %q", what, line)
	require.Error(c.t, c.cmd.Wait())
	return c.errs.String()
}

func (c *clientProcess) end() {
	c.t.Helper()
	require.NoError(c.t, c.in.Close())
	require.NoError(c.t, c.cmd.Wait())
}
