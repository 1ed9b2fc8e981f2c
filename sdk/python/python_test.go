// Package python runs the Python SDK's tests and examples on a mount.
package python

import (
	"archive/zip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
	"github.com/lanefs/lanefs/fs/share/sharetest"
	"github.com/lanefs/lanefs/lab/csdk"
	"github.com/lanefs/lanefs/lab/cuda"
)

const mib = 1 << 20

// python runs a program of the SDK on a mount, and gives what it prints.
func python(t *testing.T, m *sharetest.Mount, args ...string) string {
	t.Helper()
	out, err := command(t, m, args...).CombinedOutput()
	require.NoError(t, err, "python3 %q:\n%s", args, out)
	return string(out)
}

// interpreter is the Python that python3 is: on PATH it may be a script that looks for one, as pyenv's, which takes longer than many a program here.
var interpreter = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(out)), err
})

func command(t *testing.T, m *sharetest.Mount, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := interpreter()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs python3: make deps installs it")
	}
	require.NoError(t, err)
	here, err := os.Getwd()
	require.NoError(t, err)
	outside := t.TempDir()
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+here, "PYTHONDONTWRITEBYTECODE=1", "LANEFS_TEST_DIR="+m.Dir, "LANEFS_TEST_OUTSIDE="+outside)
	return cmd
}

// library has the package find the C library, and reports whether there is one.
func library(t *testing.T) bool {
	if _, err := exec.LookPath("cc"); err != nil {
		return false
	}
	dir, err := csdk.C()
	require.NoError(t, err)
	t.Setenv("LANEFS_LIBRARY", filepath.Join(dir, "liblanefs.so.1.0.0"))
	return true
}

func TestPython(t *testing.T) {
	m := sharetest.New(t, 256*mib, 64*mib)
	library(t) // else the tests that need it are skipped
	suite(t, python(t, m, filepath.Join("tests", "test_host.py")))
}

// TestBeside: calls beside those of other threads.
func TestBeside(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	suite(t, python(t, sharetest.New(t, 64*mib, 32*mib), filepath.Join("tests", "test_beside.py")))
}

// TestProcesses: children of a program that has files open, and workers of it.
func TestProcesses(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	suite(t, python(t, sharetest.New(t, 64*mib, 32*mib), filepath.Join("tests", "test_processes.py")))
}

// TestDocs: texts and type hints say what the code does. It needs no mount.
func TestDocs(t *testing.T) {
	bin, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: make deps installs it")
	}
	cmd := exec.Command(bin, filepath.Join("tests", "test_docs.py"))
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	suite(t, string(out))
}

// TestKV: slabs, also after kills, losses of power and damage.
func TestKV(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	suite(t, python(t, sharetest.New(t, 64*mib, 32*mib), filepath.Join("tests", "test_kv.py")))
}

// TestLMCache: its contract for GDS backends.
func TestLMCache(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	suite(t, python(t, sharetest.New(t, 64*mib, 32*mib), filepath.Join("tests", "test_lmcache.py")))
}

// TestStream: batches on streams, with a GPU of the stand-in for libcuda.
func TestStream(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	dir := t.TempDir()
	_, err := cuda.Build("cc", dir)
	require.NoError(t, err)
	t.Setenv("LD_LIBRARY_PATH", dir)
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	t.Setenv("LANEFS_FAKE_CUDA", "GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0")
	suite(t, python(t, sharetest.New(t, 64*mib, 32*mib), filepath.Join("tests", "test_stream.py")))
}

// TestConditions: the conditions of a program's that lab/gpu/run has on a GPU, as far as two devices of the stand-in can have them.
func TestConditions(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	dir := t.TempDir()
	_, err := cuda.Build("cc", dir)
	require.NoError(t, err)
	m := sharetest.New(t, 128*mib, 64*mib)
	cmd := command(t, m, "../../lab/gpu/conditions.py", m.Dir)
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+dir, "LANEFS_PATIENCE=600", "CUDA_VISIBLE_DEVICES=0,1",
		"LANEFS_FAKE_CUDA=GPU-11111111-2222-3333-4444-555555555555@0000:01:00.0,GPU-66666666-2222-3333-4444-555555555555@0000:c1:00.0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	for _, name := range []string{"captured", "captured_elsewhere", "own_context", "lost", "lost_before", "reset", "forked", "threads", "killed", "devices"} {
		require.Contains(t, string(out), "right "+name+",")
	}
}

// TestWheel: pip makes a wheel of a checkout without a network, with the C library in it, and installs it in a fresh environment, where it works; a second one has nothing of the first.
func TestWheel(t *testing.T) {
	with := ""
	for _, bin := range []string{"python3", "/usr/bin/python3"} {
		if exec.Command(bin, "-c", "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('pip', 'setuptools', 'wheel'))))").Run() == nil {
			with = bin
			break
		}
	}
	if with == "" {
		t.Skip("needs pip, setuptools and wheel: apt-get install --no-install-recommends python3-pip python3-setuptools python3-wheel")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("needs cc: make deps installs it")
	}
	from, to := filepath.Join(t.TempDir(), "a checkout"), t.TempDir() // pip writes into the sources
	require.NoError(t, os.MkdirAll(filepath.Join(from, "sdk"), 0o755))
	for _, name := range []string{"python", "c"} {
		out, err := exec.Command("cp", "-r", filepath.Join("..", name), filepath.Join(from, "sdk", name)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	make := func() {
		out, err := exec.Command(with, "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation", "--no-deps", "--no-cache-dir", "-w", from,
			filepath.Join(from, "sdk", "python")).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	// Of other sources at first: of a module that is gone since, and of a library that was another.
	gone, changed := filepath.Join(from, "sdk", "python", "lanefs", "gone.py"), filepath.Join(from, "sdk", "c", "sum.c")
	now, err := os.ReadFile(changed)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(gone, nil, 0o644))
	require.NoError(t, os.WriteFile(changed, append(now, "const char lanefs_of_before[] = \"of before\";\n"...), 0o644))
	make()
	require.NoError(t, os.Remove(gone))
	require.NoError(t, os.WriteFile(changed, now, 0o644))
	later := time.Now().Add(2 * time.Second) // make sees it, whatever grain the file system's times have
	require.NoError(t, os.Chtimes(changed, later, later))
	make()
	wheels, err := filepath.Glob(filepath.Join(from, "lanefs-*-py3-none-*.whl"))
	require.NoError(t, err)
	require.Len(t, wheels, 1)
	require.NotContains(t, wheels[0], "-any.whl") // the library is this machine's
	require.ElementsMatch(t, append(sources(t), "lanefs/liblanefs.so.1"), members(t, wheels[0]))
	z, err := zip.OpenReader(wheels[0])
	require.NoError(t, err)
	defer z.Close()
	binary, err := fs.ReadFile(z, "lanefs/liblanefs.so.1")
	require.NoError(t, err)
	require.NotContains(t, string(binary), "lanefs_of_before")
	m := sharetest.New(t, 64*mib, 32*mib)
	cmd := command(t, m, filepath.Join("tests", "test_package.py"))
	bin, path := filepath.Join(to, "bin", "python3"), ""
	// An environment without a pip of its own, which takes as long to install as all else here: with's pip installs for another Python since 22.3.
	install := []string{with, "-m", "pip", "--python", bin, "install", "-q", "--no-index", wheels[0]}
	if exec.Command("python3", "-m", "venv", "--without-pip", to).Run() != nil || exec.Command(with, "-m", "pip", "--python", bin, "--version").Run() != nil {
		bin, err = exec.LookPath(with)
		require.NoError(t, err)
		path = to
		install = []string{bin, "-m", "pip", "install", "-q", "--no-index", "--target", to, wheels[0]}
	}
	for range 2 { // a second time over the first
		out, err := exec.Command(install[0], append(install[1:], "--force-reinstall")...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	cmd.Path, cmd.Args[0] = bin, bin
	cmd.Env = append(cmd.Env, "PYTHONPATH="+path, "LANEFS_TEST_WHEEL="+to)
	cmd.Dir = to // not where the sources are
	cmd.Args[1], err = filepath.Abs(cmd.Args[1])
	require.NoError(t, err)
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	suite(t, string(said))
}

// sources are the files of the package: its modules, and their types.
func sources(t *testing.T) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir("lanefs", func(name string, d fs.DirEntry, err error) error {
		if slices.Contains([]string{".py", ".pyi", ".typed"}, filepath.Ext(name)) {
			names = append(names, name)
		}
		return err
	}))
	return names
}

// members are the files of the package in a wheel.
func members(t *testing.T, wheel string) []string {
	t.Helper()
	z, err := zip.OpenReader(wheel)
	require.NoError(t, err)
	defer z.Close()
	var names []string
	for _, f := range z.File {
		if strings.HasPrefix(f.Name, "lanefs/") {
			names = append(names, f.Name)
		}
	}
	return names
}

// TestTorch: lanefs.torch, where PyTorch is, or, by turns in make test, loaders with workers, and what of the other tests uses PyTorch or NumPy.
func TestTorch(t *testing.T) {
	with := ""
	for _, bin := range []string{"python3", "/usr/bin/python3"} { // Debian's is the system's Python's
		if exec.Command(bin, "-c", "import torch").Run() == nil {
			with = bin
			break
		}
	}
	if with == "" {
		t.Skip("needs PyTorch: apt-get install --no-install-recommends python3-torch python3-numpy")
	}
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	m := sharetest.New(t, 256*mib, 64*mib)
	bin, err := exec.LookPath(with)
	require.NoError(t, err)
	for k, args := range [][]string{{"test_torch.py"}, {"test_loader.py"}, {"test_host.py", "-k", "torch", "-k", "numpy"}} {
		if !disktest.Turn(min(k, 1), 2) {
			continue
		}
		cmd := command(t, m, append([]string{filepath.Join("tests", args[0])}, args[1:]...)...)
		cmd.Path, cmd.Args[0] = bin, bin
		cmd.Env = append(cmd.Env, "OMP_NUM_THREADS=1") // its threads for sums spin beside other tests
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		suite(t, string(out))
	}
}

// TestFirstToken: the example of a cache of keys and values, with a model as small as can be, on the CPU.
func TestFirstToken(t *testing.T) {
	if exec.Command("python3", "-c", "import torch, transformers").Run() != nil {
		t.Skip("needs PyTorch and transformers: pip install torch transformers")
	}
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	m := sharetest.New(t, 64*mib, 32*mib)
	out := python(t, m, filepath.Join("examples", "kv.py"), m.Dir, "--size", "1048576", "--tokens", "512", "--layers", "2", "--hidden", "64",
		"--intermediate", "128", "--heads", "4", "--kv-heads", "2")
	require.Regexp(t, `outputs: (\d+) of (\d+) equal to the last bit`, out)
}

// suite logs what a suite said, and shows what it skipped.
func suite(t *testing.T, out string) {
	t.Logf("%s", out)
	for _, skipped := range regexp.MustCompile(`(?m)^(\w+) .*skipped '(.*)'$`).FindAllStringSubmatch(out, -1) {
		t.Run(skipped[1], func(t *testing.T) { t.Skip(skipped[2]) })
	}
}

// TestExample: what the README says is an example runs, and says what it should.
func TestExample(t *testing.T) {
	m := sharetest.New(t, 64*mib, 32*mib)
	out := python(t, m, filepath.Join("examples", "example.py"), m.Dir)
	require.Regexp(t, `^loaded \['bias'\] at generation \d+ \{'step': '1'\}\nstill the file's bytes: False\nnow: \{'step': '2'\}\n$`, out)
}

// TestEnd: a program sees the end of the daemon, with mappings and with requests.
func TestEnd(t *testing.T) {
	library(t)
	m := sharetest.New(t, 64*mib, 32*mib)
	p := sharetest.Start(t, command(t, m, filepath.Join("tests", "end.py")))
	require.Equal(t, "ready", p.Says())
	m.Close()
	require.Equal(t, "gone", p.Says())
	require.NoError(t, p.Wait())
}

// TestInterrupt: Ctrl-C ends a wait for a device that does not answer, and the handler of another signal is run meanwhile. So does the cancellation of an await.
// A signal that another thread gets interrupts no system call of the main one, as one that comes just before the call does not.
func TestInterrupt(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	m := sharetest.New(t, 64*mib, 32*mib)
	for _, thread := range []bool{false, true} {
		t.Run(fmt.Sprintf("thread=%v", thread), func(t *testing.T) { interrupt(t, m, thread) })
	}
}

// interrupt has each case of interrupt.py interrupted: by signals to the program, or to a thread of it that does nothing.
func interrupt(t *testing.T, m *sharetest.Mount, thread bool) {
	p := sharetest.Start(t, command(t, m, filepath.Join("tests", "interrupt.py")))
	to, err := strconv.Atoi(p.Says())
	require.NoError(t, err)
	if !thread {
		to = p.Process.Pid
	}
	for name := p.Says(); name != "ok"; name = p.Says() {
		op := blockdev.OpRead
		if strings.HasSuffix(name, "write") {
			op = blockdev.OpWrite
		}
		await, release := m.HoldFirst(op)
		p.GoOn()
		await(name)
		if slices.Contains([]string{"behind", "dropped", "released", "polled", "mapped_behind"}, name) {
			p.GoOn()
			require.Equal(t, "waits", p.Says())
		}
		require.NoError(t, unix.Tgkill(p.Process.Pid, to, unix.SIGINT))
		if name == "again" {
			require.Equal(t, "handled", p.Says())
			require.NoError(t, unix.Tgkill(p.Process.Pid, to, unix.SIGINT))
		}
		require.Equal(t, "interrupted", p.Says(), name)
		release()
		p.GoOn()
	}
	require.NoError(t, p.Wait())
}

// TestClosed: a program that closes the descriptors of its sessions, and opens others under their numbers.
func TestClosed(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	require.Equal(t, "ok\n", python(t, sharetest.New(t, 64*mib, 32*mib), filepath.Join("tests", "closed.py")))
}

// TestExit: the interpreter's end does not wait for a device that does not answer, whatever is under way, and prints nothing; nor does it when warnings are errors and the interpreter checks itself.
// But it takes nothing from a thread for which it waits.
func TestExit(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	m := sharetest.New(t, 256*mib, 64*mib)
	m.Write("file", make([]byte, 3*mib))
	for _, name := range []string{"loop", "uvloop", "queued", "live", "thread", "thread_straight", "thread_maps", "ring", "os_exit", "at_exit"} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, m, "-X", "dev", "-W", "error", filepath.Join("tests", "exit.py"), name)
			if name == "uvloop" {
				hasModule(t, cmd, name)
			}
			var errs strings.Builder
			cmd.Stderr = &errs
			p := sharetest.Start(t, cmd)
			require.Equal(t, "ready", p.Says())
			await, release := m.HoldFirst(blockdev.OpRead)
			defer release()
			p.GoOn()
			require.Equal(t, "under way", p.Says())
			await(name)
			p.GoOn()
			if name == "live" {
				require.Equal(t, "at the end", p.Says())
				release()
				require.Equal(t, "all", p.Says())
			}
			require.NoError(t, p.Wait(), "%s", &errs)
			require.Empty(t, errs.String())
		})
	}
}

// TestConditionsOfPython: what kind of interpreter runs a program, what event loop it has, and what it has at its end, makes no difference, or is refused in words.
func TestConditionsOfPython(t *testing.T) {
	if !library(t) {
		t.Skip("needs cc: make deps installs it")
	}
	m := sharetest.New(t, 64*mib, 32*mib)
	m.Write("file", make([]byte, mib))
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		with []string
	}{
		{"plain", []string{"-O"}}, {"plain", []string{"-OO"}}, {"plain", []string{"-I", "-c", "import runpy, sys; sys.path.insert(0, " + strconv.Quote(here) + "); runpy.run_path('tests/conditions.py', run_name='__main__')"}},
		{"mapped", nil}, {"frozen", nil}, {"at_exit", nil}, {"uvloop", nil}, {"anyio", nil}, {"trio", nil}, {"subinterpreter", nil},
	} {
		t.Run(c.name+" "+strings.Join(c.with[:min(len(c.with), 1)], ""), func(t *testing.T) {
			args := append([]string{"-X", "dev", "-W", "error"}, c.with...)
			if len(c.with) < 2 {
				args = append(args, filepath.Join("tests", "conditions.py"))
			}
			cmd := command(t, m, append(args, c.name)...)
			if slices.Contains([]string{"uvloop", "anyio", "trio"}, c.name) {
				hasModule(t, cmd, c.name)
			}
			if c.name == "subinterpreter" {
				hasModule(t, cmd, "_xxsubinterpreters") // Python's own, to 3.12
			}
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			if c.name == "subinterpreter" {
				require.Equal(t, "100 True True\nok\n", string(out))
				return
			}
			require.Equal(t, "ok\n", string(out))
		})
	}
}

// hasModule has a program run by a Python that has a module, or skips the test.
func hasModule(t *testing.T, cmd *exec.Cmd, module string) {
	t.Helper()
	for _, bin := range []string{cmd.Path, "/usr/bin/python3"} { // Debian's is the system's Python's
		if exec.Command(bin, "-c", "import "+module).Run() == nil {
			cmd.Path, cmd.Args[0] = bin, bin
			return
		}
	}
	t.Skip("needs " + module + ": apt-get install --no-install-recommends python3-" + module)
}
