package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/lab/rocm"
)

// newHIPPlace is a place whose lanefs finds an AMD GPU: the stand-in for a version of ROCm ("": the newest), told by variables
// what it is like.
func newHIPPlace(t *testing.T, version string, env ...string) *place {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("the stand-in for ROCm needs gcc: apt-get install gcc libc6-dev")
	}
	p := newPlace(t)
	require.NoError(t, os.Symlink(shim(t, cc, version), p.path("rocm")))
	p.env = append(append(p.env, "LD_LIBRARY_PATH="+p.path("rocm"), "CUDA_VISIBLE_DEVICES=-1"), env...)
	return p
}

// shims are the stand-ins for ROCm that tests have built, by version: folders below shimDir, which TestMain removes.
var (
	shims   = map[string]string{}
	shimsMu sync.Mutex
	shimDir string // protected by shimsMu, as shims
)

// shim is the folder of the stand-in for a version of ROCm, built once: the compiler takes a second.
func shim(t *testing.T, cc, version string) string {
	t.Helper()
	shimsMu.Lock()
	defer shimsMu.Unlock()
	if dir := shims[version]; dir != "" {
		return dir
	}
	if shimDir == "" {
		var err error
		shimDir, err = os.MkdirTemp("", "lanefs-shims-")
		require.NoError(t, err)
		require.NoError(t, os.Chmod(shimDir, 0o755)) // daemons of other users load it
	}
	dir := filepath.Join(shimDir, "rocm"+version)
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, rocm.Build(cc, "cpu", version, dir))
	shims[version] = dir
	return dir
}

// daemonLog is what the daemon of a mount with -o log=… has said.
func (p *place) daemonLog(name string) string {
	b, err := os.ReadFile(p.path(name))
	require.NoError(p.t, err)
	return string(b)
}

// A GPU that works is taken for an image file, and drives the software controller.
func TestAutoTakesGPU(t *testing.T) {
	p := newHIPPlace(t, "")
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", "-o", "log="+p.path("log"), img, mnt)
	want := bytes.Repeat([]byte("through a GPU's lanes "), 40_000)
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), want, 0o600))
	got, err := os.ReadFile(filepath.Join(mnt, "file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.Equal(t, "hip", r.Runtime.Name)
	require.Equal(t, "iomem", r.Runtime.Bells)
	require.Zero(t, r.Runtime.Memory)
	require.EqualValues(t, gpuTransfer, r.Device.MaxTransfer)
	p.ok("umount", mnt)
	fsck(t, img)
	require.Contains(t, p.daemonLog("log"), `msg="the lanes run on a GPU" gpu="LaneFS shim over plain memory"`)
}

// Lanes on the CPU beside a GPU's: what goes by which is right, and stat tells them apart.
func TestLanesOfBothKinds(t *testing.T) {
	p := newHIPPlace(t, "")
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	p.ok("mount", "--gpu", "hip", "-o", "lanes=gpu:2+cpu:1,vram=16M,log="+p.path("log"), img, mnt)
	want := bytes.Repeat([]byte("by lanes of both kinds "), 40_000)
	require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), want, 0o600))
	got, err := os.ReadFile(filepath.Join(mnt, "file"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.Len(t, r.Queues, 3)
	require.False(t, r.Queues[0].CPU || r.Queues[1].CPU)
	require.True(t, r.Queues[2].CPU)
	n := r.Runtime.Chosen
	require.NotNil(t, n)
	require.NotZero(t, n.GPU)
	require.Equal(t, n.Late+n.Small+n.Host+n.Software > 0, r.Queues[2].Commands > 0)
	require.Contains(t, p.ok("stat", mnt), "lanes       on the GPU for ")

	p.ok("vram", "pin", filepath.Join(mnt, "file")) // its memory is the GPU's, so a program's kernels are likely to use it next
	r, err = p.stat(mnt)
	require.NoError(t, err)
	require.Equal(t, n.GPU, r.Runtime.Chosen.GPU, "copy engines move what goes to device memory, and no kernel of the daemon's")
	require.Greater(t, r.Runtime.Chosen.Software+r.Runtime.Chosen.Late, n.Software+n.Late) // late: the machine is busy
	p.ok("umount", mnt)
	fsck(t, img)
	require.NotContains(t, p.daemonLog("log"), "lanes= asks for")
}

// A GPU that cannot be used is refused in one line when it was named; auto says why and takes the CPU.
func TestUnusableGPU(t *testing.T) {
	for name, c := range map[string]struct{ rocm, env, why string }{
		"unknown architecture": {"", "LANEFS_SHIM_ARCH=gfx906", "hip runtime: LaneFS shim over plain memory: no kernels were built for the architecture \"gfx906\": " +
			"there are aarch64, gfx11-generic, gfx1100, gfx12-generic, gfx1201, gfx9-4-generic, gfx90a, gfx942, gfx950, "},
		"old ROCm": {"5.2", "", "hip runtime: this is ROCm 5.2, LaneFS's kernels need 6.0: update ROCm, or use --gpu host"},
		"lost": {"", "LANEFS_SHIM_LOST=1", "hip runtime: LaneFS shim over plain memory runs no kernel: hip runtime: a kernel or copy: unspecified launch failure " +
			"(hipErrorLaunchFailure, 719); the GPU is lost to this process: mount again, or use --gpu host"},
		"no device": {"", "LANEFS_SHIM_DEVICES=0", "hip runtime: ROCm 7.1 is there, but no GPU can be used: hipInit: no ROCm-capable device is detected"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newHIPPlace(t, c.rocm, c.env)
			img, mnt := p.image("image", 32), p.mkdir("mnt")
			require.Contains(t, p.fails("mount", "--gpu", "hip", img, mnt), c.why)
			p.ok("mount", "--gpu", "auto", "-o", "log="+p.path("log"), img, mnt)
			r, err := p.stat(mnt)
			require.NoError(t, err)
			require.Equal(t, "host", r.Runtime.Name)
			p.ok("umount", mnt)
			require.Regexp(t, `the lanes run on the CPU.*hip runtime: .*cuda runtime: `, p.daemonLog("log"))
		})
	}
}

// Too little device memory for what was asked for is said, with what there is.
func TestOutOfDeviceMemory(t *testing.T) {
	p := newHIPPlace(t, "", "LANEFS_SHIM_MEMORY=4194304")
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	require.Regexp(t, `hip runtime: out of device memory: asked for [0-9]+ bytes of device-fine memory, [0-9]+ of 4194304 are free`,
		p.fails("mount", "--gpu", "hip", "-o", "memory-mode=8", img, mnt))
	p.ok("mount", "--gpu", "hip", "-o", "lanes=16", img, mnt)
	p.ok("umount", mnt)
}
