package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu/hip/shim"
)

// A GPU for which there are no kernels: named, it is refused with the list of those that there are; auto says why and takes
// the CPU.
func TestUnknownGPU(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("the stand-in for ROCm needs gcc: apt-get install gcc libc6-dev")
	}
	p := newPlace(t)
	require.NoError(t, shim.Build(cc, "cpu", "", p.mkdir("rocm")))
	p.env = append(p.env, "LD_LIBRARY_PATH="+p.path("rocm"), "LANEFS_SHIM_ARCH=gfx906", "CUDA_VISIBLE_DEVICES=-1")
	img, mnt, log := p.image("image", 32), p.mkdir("mnt"), p.path("log")
	const why = "hip runtime: LaneFS shim over plain memory: no kernels were built for the architecture"
	said := p.fails("mount", "--gpu", "hip", img, mnt)
	require.Contains(t, said, why+` "gfx906": there are gfx1100, gfx1201, gfx90a, gfx942, `)
	p.ok("mount", "--gpu", "auto", "-o", "log="+log, img, mnt)
	p.ok("umount", mnt)
	b, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(b), "the lanes run on the CPU")
	require.Contains(t, string(b), "cuda runtime: ")
	require.Contains(t, string(b), why)
}
