package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/fs"
	"github.com/lanefs/lanefs/lab/csdk"
	"github.com/lanefs/lanefs/lab/cuda"
)

// installed puts this program and the libraries of sdk/cufile where make install would, and uses them from there. It builds tests of the
// interface, and returns the path of each.
func (p *place) installed(tests ...string) []string {
	p.t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		p.t.Skip("needs gcc: make deps installs it")
	}
	usr := p.mkdir("usr")
	require.NoError(p.t, csdk.CuFile("PREFIX="+usr))
	require.NoError(p.t, os.Mkdir(filepath.Join(usr, "bin"), 0o755))
	b, err := os.ReadFile(p.bin)
	require.NoError(p.t, err)
	p.bin = filepath.Join(usr, "bin/lanefs")
	require.NoError(p.t, os.WriteFile(p.bin, b, 0o755))
	var built []string
	for _, name := range tests {
		out, lib := p.path(name), "libcufile.so.0"
		if name == "testhip" {
			lib = "libhipfile.so.0"
		}
		// Linked with a library that is not there when the program starts, but for lanefs run.
		tool(p.t, cc, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-I../../sdk/cufile", "-o", out, "../../sdk/cufile/"+name+".c", filepath.Join(usr, "lib/lanefs", lib), "-pthread", "-ldl")
		built = append(built, out)
	}
	return built
}

// pattern is what the tests of sdk/cufile expect of their files.
func pattern() []byte {
	b := make([]byte, 5<<20+17)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
}

func TestRun(t *testing.T) {
	p := newPlace(t)
	test := p.installed("test")[0]
	tmp := p.mkdir("tmp")
	p.env = append(p.env, "TMPDIR="+tmp, "LANEFS_REAL_CUFILE=") // the machine's own would be asked for the other file
	img, mnt, other := p.image("image", 128), p.mkdir("mnt"), p.path("other")
	p.ok("mount", "--gpu", "host", "-o", "vram=48M", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	require.NoError(t, os.WriteFile(other, pattern(), 0o644))

	out, errs, err := p.run("run", "--", test, file, other)
	require.NoError(t, err, errs)
	require.Equal(t, "ok\n", out)
	require.Regexp(t, `^lanefs run: .*LaneFS, stage: [1-9][0-9.]* MiB read, [1-9][0-9.]* MiB written(; LaneFS, page cache: [1-9][0-9.]* [KM]iB read, 0 bytes written)?; pread and pwrite: [1-9][0-9.]* MiB read, [1-9][0-9.]* MiB written; [1-9]\d\d+ requests in [1-9]\d* batches \([1-9]\d* calls, [1-9]\d* failed; [1-9]\d* requests in batches failed\)\n$`, errs)
	_, errs, err = p.run("run", "--trace", test, file, other)
	require.NoError(t, err, errs)
	require.Contains(t, errs, fmt.Sprintf("lanefs: cuFileRead(%s, 1000 bytes at 77, ", file))
	require.Regexp(t, `= 1000, LaneFS, (stage|shared memory|page cache), \d+ us\n`, errs)
	require.Regexp(t, `lanefs: cuFileRead\(0x[0-9a-f]+, 1 bytes at 0\) = -5027, no such handle\n`, errs)

	// What is killed has counted, and so have a shell's children.
	end := p.command("run", "--", "sh", "-c", `"$1" "$2" "$3" >/dev/null; { "$1" "$2" "$3" end || echo failed; } & sleep 1000 >/dev/null 2>&1 & wait`, "sh", test, file, other)
	end.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	end.Stderr = &said
	pipe, err := end.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, end.Start())
	p.children = append(p.children, end)
	t.Cleanup(func() { _ = syscall.Kill(-end.Process.Pid, syscall.SIGKILL) }) // else what has failed waits for the sleep
	lines := bufio.NewReader(pipe)
	line, err := lines.ReadString('\n')
	require.NoError(t, err, "%s", &said)
	require.Equal(t, "ok\n", line)
	counting, err := filepath.Glob(filepath.Join(tmp, "lanefs-roads-*"))
	require.NoError(t, err)
	require.Len(t, counting, 1)
	// The daemon dies while the program reads.
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(r.PID, syscall.SIGKILL))
	line, err = lines.ReadString('\n')
	require.NoError(t, err, "%s", &said)
	require.Equal(t, "gone\n", line)
	children, err := exec.Command("pgrep", "-P", itoa(end.Process.Pid)).Output() // the shell
	require.NoError(t, err)
	var shell int
	_, err = fmt.Sscan(string(children), &shell)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(shell, syscall.SIGKILL))
	err = end.Wait()
	require.NoError(t, syscall.Kill(-end.Process.Pid, syscall.SIGKILL)) // the sleep
	require.Equal(t, 128+int(syscall.SIGKILL), err.(*exec.ExitError).ExitCode())
	require.Regexp(t, `lanefs run: .*LaneFS, stage: [1-9][0-9.]* MiB read, `, said.String())
	left, err := filepath.Glob(filepath.Join(tmp, "lanefs-roads-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, fs.Detach(mnt))
}

func TestRunStatus(t *testing.T) {
	p := newPlace(t)
	p.installed()
	for k, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"sh", "-c", "exit 0"}, 0, "no call of cuFile or hipFile was made"},
		{[]string{"sh", "-c", "exit 1"}, 1, "no call"},
		{[]string{"sh", "-c", "exit 77"}, 77, "no call"},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, "no call"},
		{[]string{"--", "sh", "-c", "exit $#", "--trace", "a", "b"}, 2, "no call"},
		{[]string{"no-such-program-at-all"}, 127, "not found"},
		{[]string{""}, 127, "no command"},
		{[]string{p.dir}, 126, "permission denied"},
		{[]string{"sh", "-c", "rm $LANEFS_ROADS"}, 0, "not known"},
		{nil, 2, "want PROGRAM"},
	} {
		cmd := p.command(append([]string{"run"}, c.args...)...)
		if k%2 == 1 { // it needs no TMPDIR
			cmd.Env = append(cmd.Env, "TMPDIR="+p.path("none"))
		}
		var said strings.Builder
		cmd.Stderr = &said
		_ = cmd.Run()
		require.Equal(t, c.status, cmd.ProcessState.ExitCode(), "%q: %s", c.args, &said)
		require.Contains(t, said.String(), c.says, "%q", c.args)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGINT} {
		cmd := p.command("run", "sh", "-c", fmt.Sprintf(`trap "exit 9" %d; echo up; while :; do sleep 0.05; done`, s))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal
		pipe, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		p.children = append(p.children, cmd)
		_, err = bufio.NewReader(pipe).ReadString('\n')
		require.NoError(t, err)
		require.NoError(t, cmd.Process.Signal(s))
		ended := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		ended.Stop()
		require.Equal(t, 9, cmd.ProcessState.ExitCode(), "%v", s)
	}
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(p.bin), "../lib/lanefs/libcufile.so.0")))
	require.Contains(t, p.fails("run", "true"), "make install puts it there")
}

// TestRunExec: what a shell starts, and what a program becomes by exec, is counted, too.
func TestRunExec(t *testing.T) {
	p := newPlace(t)
	test := p.installed("testexec")[0]
	p.env = append(p.env, "LANEFS_REAL_CUFILE=", "LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_MAP=0")
	img, mnt, other := p.image("image", 128), p.mkdir("mnt"), p.path("other")
	p.ok("mount", "--gpu", "host", "-o", "vram=48M", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	require.NoError(t, os.WriteFile(other, pattern(), 0o644))
	for _, c := range []struct {
		args                  []string
		stage, plain, program int // MiB; programs
	}{
		{[]string{test, file, other, "1", "2"}, 1, 2, 1},
		{[]string{"sh", "-c", `"$0" "$@"`, test, file, other, "1", "2"}, 1, 2, 1},
		{[]string{test, file, other, "1", "2", "exec", test, file, other, "3", "1"}, 4, 3, 2}, // one after the other, by exec
		{[]string{"sh", "-c", `"$0" "$@" & sh -c 'exec "$0" "$@"' "$0" "$@"; wait`, test, file, other, "1", "1", "exec", "env", "A=b", test, file, other, "1", "4"}, 4, 10, 4},
		{[]string{test, file, other, "1", "2", "exec", "sh", "-c", "exit 7"}, 1, 2, 1},
		{[]string{test, file, other, "1", "1", "vfork", test, file, other, "2", "2"}, 3, 3, 2},
	} {
		out, errs, err := p.run(append([]string{"run", "--"}, c.args...)...)
		if strings.Contains(strings.Join(c.args, " "), "exit 7") {
			require.Equal(t, 7, err.(*exec.ExitError).ExitCode())
		} else {
			require.NoError(t, err, errs)
		}
		require.Equal(t, strings.Repeat("ok\n", c.program), out)
		require.Equal(t, 1, strings.Count(errs, "lanefs run:"), errs) // one line, at the end of all
		require.Contains(t, errs, fmt.Sprintf("LaneFS, stage: %d MiB read, 0 bytes written; pread and pwrite: %d MiB read", c.stage, c.plain))
	}
	p.ok("umount", mnt)
	fsck(t, img)
}

// withCUDA has the programs find a stand-in for libcuda, and no library of NVIDIA's for cuFile.
func (p *place) withCUDA() {
	p.t.Helper()
	dir := p.mkdir("cuda")
	_, err := cuda.Build("gcc", dir)
	require.NoError(p.t, err)
	p.env = append(p.env, "LANEFS_REAL_CUFILE=", "LD_LIBRARY_PATH="+dir)
}

// TestRunStreamKilled: the daemon is killed while a read is on a stream of the GPU: cuFile's own error, at once, and no byte that is not the file's.
func TestRunStreamKilled(t *testing.T) {
	p := newPlace(t)
	test := p.installed("testcuda")[0]
	p.withCUDA()
	p.env = append(p.env, "LANEFS_CUFILE_MAP=0", "CUDA_VISIBLE_DEVICES=0,1",
		"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0")
	img, mnt := p.image("image", 128), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=48M", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	r, err := p.stat(mnt)
	require.NoError(t, err)
	cmd := p.command("run", "--", test, file, file, "end")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p.children = append(p.children, cmd)
	lines := bufio.NewReader(pipe)
	next := func() string {
		line, _ := lines.ReadString('\n')
		return line
	}
	require.Equal(t, "reading\n", next(), "%s", &errs)
	p.stop(r.PID) // then a read is under way, and stays so
	time.Sleep(300 * time.Millisecond)
	begun := time.Now()
	require.NoError(t, syscall.Kill(r.PID, syscall.SIGKILL))
	require.Equal(t, "gone\n", next(), "%s", &errs)
	require.Less(t, time.Since(begun), time.Minute)
	require.Equal(t, "ok\n", next(), "%s", &errs)
	require.NoError(t, cmd.Wait(), "%s", &errs)
	require.Regexp(t, `LaneFS, stage: [1-9]`, errs.String())
	require.NoError(t, fs.Detach(mnt))
}

// TestRoadNames: a line for each call has the names of the last line.
func TestRoadNames(t *testing.T) {
	source, err := os.ReadFile("../../sdk/cufile/count.c")
	require.NoError(t, err)
	require.Contains(t, string(source), fmt.Sprintf("{\"%s\"};", strings.Join(roadNames, `", "`)))
	require.Contains(t, string(source), fmt.Sprintf("_Static_assert(sizeof(struct roads) == %d, ", roadsSize))
	require.Contains(t, string(source), fmt.Sprintf("magic[] = %q;", roadsMagic))
}

// TestRunStreamCounts: of calls on a stream what they have moved counts, not what was asked for, and one that fails there is one that failed.
func TestRunStreamCounts(t *testing.T) {
	p := newPlace(t)
	test := p.installed("testcount")[0]
	p.withCUDA()
	p.env = append(p.env, "LANEFS_CUFILE_MAP=0", "CUDA_VISIBLE_DEVICES=0",
		"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0")
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=16M", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	out, errs, err := p.run("run", "--", test, file, filepath.Join(mnt, "filler"))
	require.NoError(t, err, errs)
	require.Equal(t, "ok\n", out)
	require.Regexp(t, `^lanefs run: LaneFS, stage: 3 MiB read, 0 bytes written \(5 calls, 1 failed\)\n$`, errs)
	p.ok("umount", mnt)
	fsck(t, img)
}

// TestRunBatchCounts: of a batch's requests those that fail are counted, beside the calls, of which the batch is one.
func TestRunBatchCounts(t *testing.T) {
	p := newPlace(t)
	test := p.installed("testcount")[0]
	p.env = append(p.env, "LANEFS_REAL_CUFILE=", "LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_SMALL=lanes")
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host", "-o", "vram=16M", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	out, errs, err := p.run("run", "--", test, file, filepath.Join(mnt, "filler"), "batch")
	require.NoError(t, err, errs)
	require.Equal(t, "ok\n", out)
	require.Regexp(t, `^lanefs run: LaneFS, stage: 2 MiB read, 0 bytes written; [^;]* \(\d+ calls, 0 failed; 2 requests in batches failed\)\n$`, errs)

	// A file of another version's layout is left alone.
	for _, size := range []int{128, roadsSize} {
		old := p.path("old")
		b := append([]byte("LFSROAD3"), make([]byte, size-8)...)
		require.NoError(t, os.WriteFile(old, b, 0o600))
		require.NoError(t, os.Remove(filepath.Join(mnt, "filler")))
		out, errs, err = p.run("run", "--", "sh", "-c", `LANEFS_ROADS=$0 exec "$@"`, old, test, file, filepath.Join(mnt, "filler"), "batch")
		require.NoError(t, err, errs)
		require.Equal(t, "ok\n", out)
		require.Contains(t, errs, "no call of cuFile or hipFile was made")
		got, err := os.ReadFile(old)
		require.NoError(t, err)
		require.Equal(t, b, got)
	}
	p.ok("umount", mnt)
	fsck(t, img)
}

// TestRunBatch: batches of a daemon that is stopped, and then killed, and of a program that gets no memory, threads or descriptors.
func TestRunBatch(t *testing.T) {
	for _, runner := range []string{"", "thread"} { // who waits runs them, or the library's thread does
		p := newPlace(t)
		test := p.installed("testbatch")[0]
		p.env = append(p.env, "LANEFS_REAL_CUFILE=", "LANEFS_CUFILE_MAP=0", "LANEFS_CUFILE_SMALL=lanes", "LANEFS_CUFILE_BATCH="+runner)
		img, mnt, other := p.image("image", 64), p.mkdir("mnt"), p.path("other")
		p.ok("mount", "--gpu", "host", "-o", "vram=24M", img, mnt)
		file := filepath.Join(mnt, "file")
		require.NoError(t, os.WriteFile(file, pattern(), 0o644))
		require.NoError(t, os.WriteFile(other, pattern(), 0o644))
		r, err := p.stat(mnt)
		require.NoError(t, err)
		out, errs, err := p.run("run", "--", test, file, other, itoa(r.PID))
		_ = syscall.Kill(r.PID, syscall.SIGCONT) // where the program has failed
		require.NoError(t, err, errs)
		require.Equal(t, "ok\n", out)
		require.NoError(t, fs.Detach(mnt))
	}
}

// TestRunMapped: reads from memory that is shared with the daemon, and while it is being mapped, until the daemon is killed.
func TestRunMapped(t *testing.T) {
	p := newPlace(t)
	test := p.installed("testmap")[0]
	p.withCUDA()
	p.env = append(p.env, "LANEFS_CUFILE_SMALL=lanes")
	img, mnt, img2, mnt2 := p.image("image", 128), p.mkdir("mnt"), p.image("image2", 128), p.mkdir("mnt2")
	p.ok("mount", "--gpu", "host", "-o", "vram=48M", img, mnt)
	p.ok("mount", "--gpu", "host", "-o", "vram=300M", img2, mnt2)
	file, large := filepath.Join(mnt, "file"), filepath.Join(mnt2, "large")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	b := make([]byte, 65<<20)
	for i := range b {
		b[i] = byte(i % 251)
	}
	require.NoError(t, os.WriteFile(large, b, 0o644))
	r, err := p.stat(mnt)
	require.NoError(t, err)
	for _, args := range [][]string{{"later"}, {"cached"}, nil} {
		out, errs, err := p.run(append([]string{"run", "--", test, file, large, itoa(r.PID)}, args...)...)
		require.NoError(t, err, errs)
		require.Equal(t, "ok\n", out)
	}
	require.NoError(t, fs.Detach(mnt))
	p.ok("umount", mnt2)
	fsck(t, img2)
}

// hipFile's interface, with memory of the stand-in for ROCm.
func TestRunHIP(t *testing.T) {
	p := newHIPPlace(t, "")
	test := p.installed("testhip")[0]
	p.env = append(p.env, "LANEFS_REAL_HIPFILE=")
	img, mnt, other := p.image("image", 128), p.mkdir("mnt"), p.path("other")
	p.ok("mount", "--gpu", "hip", "-o", "vram=48M", img, mnt)
	file := filepath.Join(mnt, "file")
	require.NoError(t, os.WriteFile(file, pattern(), 0o644))
	require.NoError(t, os.WriteFile(other, pattern(), 0o644))
	out, errs, err := p.run("run", test, file, other)
	require.NoError(t, err, errs)
	require.Equal(t, "ok\n", out)
	require.Regexp(t, `LaneFS, stage: .* pread and pwrite: `, errs)
	p.ok("umount", mnt)
	fsck(t, img)
}
