package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestRunTwoMounts: of two mounts whose files a program reads and writes at the same time, one ends. What is under way with the other goes on, the rest fails, and
// the program can use the mount that comes after it. make test takes every second: each end, and each kind of memory.
func TestRunTwoMounts(t *testing.T) {
	for k, c := range []struct{ end, memory, small, shared string }{
		{"killed", "cuda", "lanes", "0"},
		{"stopped", "cuda", "cache", "0"},
		{"aborted", "cuda", "lanes", "1"},
		{"killed", "cpu", "cache", "1"},
		{"stopped", "cpu", "lanes", "1"},
		{"aborted", "cpu", "", ""},
	} {
		if !disktest.Turn(k, 2) {
			continue
		}
		t.Run(fmt.Sprint(c), func(t *testing.T) { runTwoMounts(t, c.end, c.memory, c.small, c.shared) })
	}
}

func runTwoMounts(t *testing.T, end, memory, small, shared string) {
	p := newPlace(t)
	test := p.installed("testtwo")[0]
	p.withCUDA()
	p.env = append(p.env, "LANEFS_CUFILE_SMALL="+small, "LANEFS_CUFILE_MAP="+shared)
	var img, mnt, file [2]string
	for i := range mnt {
		img[i], mnt[i] = p.image("image"+itoa(i), 128), p.mkdir("mnt"+itoa(i))
		p.ok("mount", "--gpu", "host", "-o", "vram=48M", img[i], mnt[i])
		file[i] = filepath.Join(mnt[i], "file")
		require.NoError(t, os.WriteFile(file[i], pattern(), 0o644))
		fd, err := os.Open(file[i])
		require.NoError(t, err)
		require.NoError(t, fd.Sync())
		require.NoError(t, fd.Close())
	}
	r, err := p.stat(mnt[1])
	require.NoError(t, err)

	cmd := p.command("run", "--", test, file[0], file[1], memory)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.children = append(p.children, cmd)
	lines := bufio.NewReader(out)
	says := func(want string) {
		t.Helper()
		line, _ := lines.ReadString('\n')
		if line != want+"\n" {
			_ = cmd.Wait()
			require.Equal(t, want+"\n", line, "%s", &errs)
		}
	}
	says("running")
	switch end {
	case "stopped": // so that something is under way
		p.stop(r.PID)
		fallthrough
	case "killed":
		require.NoError(t, syscall.Kill(r.PID, syscall.SIGKILL))
	case "aborted": // as fusectl's abort does it; the mount stays, for it is in use
		_ = unix.Unmount(mnt[1], unix.MNT_FORCE)
	}
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	fmt.Fprintln(in)
	says("gone")
	require.NoError(t, fs.Detach(mnt[1]))
	p.ok("mount", "--gpu", "host", "-o", "vram=48M", img[1], mnt[1])
	fmt.Fprintln(in)
	says("ok")
	require.NoError(t, cmd.Wait(), "%s", &errs)
	for i := range mnt {
		p.ok("umount", mnt[i])
		fsck(t, img[i])
	}
}
