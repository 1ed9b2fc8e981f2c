package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	lanefs "github.com/lanefs/lanefs/sdk/go"
)

// TestSeveralGPUs: each device of a mount has lanes and a pool, and a program gets the memory of the one that it chose, which follows the file
// as the others do.
func TestSeveralGPUs(t *testing.T) {
	p := newPlace(t)
	image, dir := p.image("image", 128), p.mkdir("mnt")
	p.ok("mount", "--gpu", "host:0,1", "-o", "vram=16M,lanes=2", image, dir)
	severalGPUs(t, p, dir, "host:0", "host:1")
	said := func(gpu string) string {
		out, err := pythonSession(p, filepath.Join(dir, "weights"), "LANEFS_GPU="+gpu).CombinedOutput()
		require.Equal(t, gpu == "9", err != nil, "%s", out)
		return string(out)
	}
	require.Equal(t, "host:0 2\n", said(""))
	require.Equal(t, "host:1 2\n", said("1"))
	require.Equal(t, "host:1 2\n", said("host:1"))
	require.Contains(t, said("9"), "the mount has 2 GPUs, and none with index 9")
	p.ok("umount", dir)
	fsck(t, image)
}

// pythonSession is a Python program that says whose memory it gets.
func pythonSession(p *place, path string, env ...string) *exec.Cmd {
	return pythonProgram(p, "import lanefs, sys\nwith lanefs.open(sys.argv[1]) as a, lanefs.open(sys.argv[1]) as b:\n"+
		" assert a.session is b.session\n print(a.session.device, a.session.gpus)", path, env...)
}

// pythonProgram is one that has the SDK, and a file's path.
func pythonProgram(p *place, program, path string, env ...string) *exec.Cmd {
	python, err := exec.LookPath("python3")
	if err != nil {
		p.t.Skip("needs python3: make deps installs it")
	}
	cmd := exec.Command(python, "-c", program, path)
	cmd.Env = append(append(os.Environ(), "PYTHONPATH="+filepath.Join("..", "..", "sdk", "python"), "PYTHONDONTWRITEBYTECODE=1"), env...)
	return cmd
}

// severalGPUs is what a mount with two devices must do, whatever they are.
func severalGPUs(t *testing.T, p *place, dir, first, second string) {
	path := filepath.Join(dir, "weights")
	data := bytes.Repeat([]byte("0123456789abcdef"), 200000)
	require.NoError(t, os.WriteFile(path, data, 0o644))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	connect := func(gpu string) *lanefs.Session {
		c, err := lanefs.Connect(f)
		require.NoError(t, err)
		require.Equal(t, 2, c.Facts().GPUs)
		require.Equal(t, first, c.Facts().Device)
		require.NoError(t, c.Use(gpu))
		t.Cleanup(func() { c.Close() })
		return c
	}
	used := func() (n [2]int64) {
		var r vramReport
		require.NoError(t, json.Unmarshal([]byte(p.ok("vram", "ls", "--json", dir)), &r))
		require.Len(t, r.Pools, 2)
		require.Equal(t, []string{first, second}, []string{r.Pools[0].GPU, r.Pools[1].GPU})
		require.EqualValues(t, 32<<20, r.Size)
		return [2]int64{r.Pools[0].Used, r.Pools[1].Used}
	}
	read := func() (n [2]uint64) { // by the lanes of each
		var r report
		require.NoError(t, json.Unmarshal([]byte(p.ok("stat", "--json", dir)), &r))
		require.Equal(t, []string{first, second}, []string{r.Runtime.PCI, r.Runtime.More[0].PCI})
		for _, q := range r.Queues {
			switch {
			case q.GPU == second:
				n[1] += q.BytesRead
			case !q.CPU:
				n[0] += q.BytesRead
			}
		}
		return n
	}

	before := read()
	c := connect(second)
	require.Equal(t, second, c.Facts().Device)
	b, err := c.Map(f, 0, 0)
	require.NoError(t, err)
	if first == "host:0" {
		require.True(t, bytes.Equal(data, b.Bytes()))
	}
	require.Equal(t, [2]int64{0, 4 << 20}, used())
	after := read()
	require.GreaterOrEqual(t, after[1]-before[1], uint64(len(data)), "the lanes of the second read what went to its memory")
	require.Less(t, after[0]-before[0], uint64(len(data)))
	require.ErrorIs(t, c.Use("0"), syscall.EBUSY)
	require.ErrorIs(t, connect("1").Use("0000:99:00.0"), syscall.ENODEV)
	require.ErrorIs(t, connect("1").Use("2"), syscall.ENODEV)

	d := connect("0")
	other, err := d.Map(f, 0, 0)
	require.NoError(t, err)
	require.Equal(t, [2]int64{4 << 20, 4 << 20}, used())
	require.True(t, b.Current() && other.Current())
	require.NoError(t, os.WriteFile(path, data[:5000], 0o644))
	require.False(t, b.Current() || other.Current(), "a change is told to the holders on both")
	require.NoError(t, b.Close())
	require.NoError(t, other.Close())

	p.ok("vram", "pin", path)
	require.Equal(t, [2]int64{2 << 20, 2 << 20}, used())
	out := p.ok("stat", dir)
	require.Contains(t, out, " at "+first)
	require.Contains(t, out, "pool        "+second)
}

func TestSeveralGPUsBadInput(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1") // where there is a GPU, it is not seen
	p := newPlace(t)
	image, dir := p.image("image", 32), p.mkdir("mnt")
	for gpu, want := range map[string]string{
		"host:0,0":     "host:0 is there twice",
		"host:":        "want auto, host, hip or cuda",
		"auto:0":       "want auto, host, hip or cuda",
		"host:0,x":     "want auto, host, hip or cuda",
		"cuda:0,hip:1": "want auto, host, hip or cuda",
		"cuda:0,1":     "--gpu cuda:0: cuda runtime",
		"hip:-1":       "want auto, host, hip or cuda",
	} {
		require.Contains(t, p.fails("mount", "--gpu", gpu, image, dir), want, gpu)
	}
	require.Contains(t, p.fails("mount", "-o", "gpu=host:0,0", image, dir), "twice")
}

// TestSeveralAMDGPUs is the same with two devices of the stand-in for ROCm, whose lanes run on their own and whose memory copy engines fill.
func TestSeveralAMDGPUs(t *testing.T) {
	p := newHIPPlace(t, "", "LANEFS_SHIM_DEVICES=2")
	image, dir := p.image("image", 128), p.mkdir("mnt")
	require.Contains(t, p.fails("mount", "--gpu", "hip:0,2", image, dir), "--gpu hip:2: hip runtime: device 2 does not exist: ROCm shows 2")
	require.Contains(t, p.ok("doctor"), "--gpu hip:0,1 takes it beside the first")
	p.ok("mount", "--gpu", "hip:0,1", "-o", "vram=16M,lanes=2", image, dir)
	r, err := p.stat(dir)
	require.NoError(t, err)
	require.NotEqual(t, r.Runtime.PCI, r.Runtime.More[0].PCI)
	second := r.Runtime.More[0].PCI
	severalGPUs(t, p, dir, r.Runtime.PCI, second)
	path := filepath.Join(dir, "weights")
	out, err := pythonSession(p, path, p.env...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, r.Runtime.PCI+" 2\n", string(out))
	require.Equal(t, "0: "+r.Runtime.PCI+", address\n1: "+second+", address\n", currentGPU(t, p)(path, true))
	p.ok("umount", dir)
	fsck(t, image)
}

// TestWhichGPU: a device is named by its UUID and its address, and a program's device is the mount's whatever order either process sees them in.
func TestWhichGPU(t *testing.T) {
	p := newHIPPlace(t, "", "LANEFS_SHIM_DEVICES=3")
	image, dir := p.image("image", 32), p.mkdir("mnt")
	const first, second, third, id2, id3 = "0000:00:00.0", "0000:00:01.0", "0000:00:02.0", "GPU-c1f0e0d100005eed", "GPU-c1f0e0d200005eed"
	out := p.ok("doctor")
	for _, s := range []string{first + ", GPU-c1f0e0d000005eed", second + ", " + id2 + "; --gpu hip:0,1 takes it", third + ", " + id3 + "; --gpu hip:0,2 takes it"} {
		require.Contains(t, out, s)
	}
	for which, says := range map[string]string{
		"GPU-c1f": "is the beginning of two devices' names: 0: GPU-", "GPU-77": `--gpu hip:GPU-77: hip runtime: no device is "GPU-77"; there are 0: GPU-c1f0e0d000005eed at 0000:00:00.0, 1: `,
		"00:03.0": "no device is", "1," + id2: "--gpu hip:" + id2 + " is the same device as hip:1: " + second,
	} {
		require.Contains(t, p.fails("mount", "--gpu", "hip:"+which, image, dir), says, which)
	}
	env := p.env
	hidden := append(slices.Clone(env), "HIP_VISIBLE_DEVICES=0")
	p.env = hidden
	require.Contains(t, p.fails("mount", "--gpu", "hip:"+id2, image, dir), `(HIP_VISIBLE_DEVICES is "0", `)

	// A mount that sees them in another order, of the third by its UUID and the second by its address.
	p.env = append(slices.Clone(env), "HIP_VISIBLE_DEVICES=2,0,1")
	p.ok("mount", "--gpu", "hip:"+id3[:12]+",00:01.0", "-o", "vram=16M,lanes=2", image, dir)
	r, err := p.stat(dir)
	require.NoError(t, err)
	require.Equal(t, []string{third, second}, []string{r.Runtime.PCI, r.Runtime.More[0].PCI})
	path := filepath.Join(dir, "weights")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), 200000), 0o644))
	program := currentGPU(t, p)
	for _, c := range []struct{ env, says string }{
		{"HIP_VISIBLE_DEVICES=1,2", "0: " + second + ", address\n1: " + third + ", address\n"},
		{"HIP_VISIBLE_DEVICES=2,1", "0: " + third + ", address\n1: " + second + ", address\n"},
		{"ROCR_VISIBLE_DEVICES=2,1", "0: " + third + ", address\n1: " + second + ", address\n"},
		{"LANEFS_SHIM_DEVICES=3", "0: " + third + ", address\n1: " + second + ", address\n"}, // its first is none of the mount's: the mount's first
	} {
		p.env = append(slices.Clone(env), c.env)
		require.Equal(t, c.says, program(path, true), c.env)
	}
	// A program that does not see the mount's devices gets no address, and an error that says so.
	p.env = hidden
	require.Contains(t, program(path, false), "hipDeviceGetByPCIBusId: error")
	for gpu, want := range map[string]string{"HIP_VISIBLE_DEVICES=2": third, "HIP_VISIBLE_DEVICES=1": second} {
		out, err := pythonSession(p, path, append(slices.Clone(env), gpu)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, want+" 2\n", string(out))
	}
	p.env = env
	p.ok("umount", dir)
	fsck(t, image)
}

// currentGPU builds a C program that makes one device current, and then the other.
func currentGPU(t *testing.T, p *place) func(path string, works bool) string {
	program := p.path("current")
	require.NoError(t, os.WriteFile(program+".c", []byte(`
#include <fcntl.h>
#include <stdio.h>
#include "lanefs.h"
int hipInit(unsigned), hipSetDevice(int);
int main(int argc, char **argv)
{
	int fd = open(argv[argc - 1], O_RDONLY);
	for (int i = 0; i < 2; i++) {
		struct lanefs_buffer b;
		void *at = NULL;
		if (hipInit(0) || hipSetDevice(i))
			return 1;
		lanefs *s = lanefs_connect(fd);
		if (!s || lanefs_map(s, fd, 0, 0, 0, &b) || lanefs_gpu_map(s, &b, &at))
			return fprintf(stderr, "%s\n", lanefs_error()), 1;
		printf("%d: %s%s\n", i, lanefs_facts(s)->device, at ? ", address" : "");
		lanefs_unmap(s, &b);
		lanefs_close(s);
	}
	return 0;
}`), 0o600))
	tool(t, "gcc", "-I../../sdk/c", "-o", program, program+".c", filepath.Join(libraries(t), "liblanefs.a"), "-L"+p.path("rocm"), "-l:libamdhip64.so.6", "-pthread", "-ldl")
	return func(path string, works bool) string {
		cmd := exec.Command(program, path)
		cmd.Env = append(os.Environ(), p.env...)
		out, err := cmd.CombinedOutput()
		require.Equal(t, works, err == nil, "%s", out)
		return string(out)
	}
}

// TestCurrentGPUStays: what the Python SDK does with memory of another GPU leaves the thread's current one what it was, as PyTorch's
// collectives and allocations need it.
func TestCurrentGPUStays(t *testing.T) {
	p := newHIPPlace(t, "", "LANEFS_SHIM_DEVICES=2")
	image, dir := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "hip:0", "-o", "vram=16M", image, dir)
	path := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), 10000), 0o644))
	out, err := pythonProgram(p, `
import ctypes, sys, lanefs
from lanefs._driver import Driver
with lanefs.open(sys.argv[1], "r+") as f:
    driver, at = Driver.of("hip", f.session.device), ctypes.c_int(-1)
    driver.do("SetDevice", ctypes.c_int(1))

    def stays(what):
        driver.do("GetDevice", ctypes.byref(at))
        assert at.value == 1, f"{what}: the current device is {at.value}"
    with f.map() as m:
        stays("map")
    stays("a mapping's end")
    b = lanefs.Buffer(f, 1 << 20)
    stays("a buffer")
    assert f.read_into(b, 0, 0, 4096) == 4096
    stays("a read")
    assert f.write_from(b, 0, 0, 4096) == 4096
    stays("a write")
    b.close()
    stays("a buffer's end")
`, path, p.env...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.ok("umount", dir)
}
