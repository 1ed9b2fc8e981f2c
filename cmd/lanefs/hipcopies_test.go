package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/lab/rocm"
)

// newCopiesPlace is a place whose GPU has its memory in two copies, what kernels see in L2 and what others see in memory (lab/rocm).
func newCopiesPlace(t *testing.T, how string, env ...string) *place {
	t.Helper()
	p := newHIPPlace(t, "", env...)
	p.env = append(p.env, "LANEFS_SHIM_COPIES="+how, "LANEFS_SHIM_DEVICE="+p.path("gpu"))
	return p
}

// random is a file's content of so many bytes.
func random(n int) []byte {
	b := make([]byte, n)
	fill := rand.NewChaCha8([32]byte{7})
	fill.Read(b)
	return b
}

// TestHIPCopies is whole mounts, and programs with files in device memory, on a GPU whose L2 sees nothing of what others write before the host data
// path was flushed. Without VMM the software controller and the daemon write into device memory by the CPU, through the BAR; with it
// the copy engine does, which needs no flush. With "deaf" the flush does nothing: so each part finds that it was left out.
func TestHIPCopies(t *testing.T) {
	for _, name := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("the C library needs %s: make deps installs it", name)
		}
	}
	build := libraries(t)
	for _, c := range []struct {
		name string
		env  []string
		kind gpu.ExportKind
	}{
		{"BAR", []string{"LANEFS_SHIM_NO_VMM=1"}, gpu.ExportDMABUF},
		{"VMM", nil, gpu.ExportPOSIX},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newCopiesPlace(t, "1", append(c.env, libraryOf(build))...)
			img, mnt := p.image("image", 64), p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip", "-o", "vram=16M", img, mnt)
			path, content := filepath.Join(mnt, "weights"), random(ringTo+ringLen+123)
			require.NoError(t, os.WriteFile(path, content, 0o644))
			program := p.client(path)
			require.Equal(t, "ok\n", program.ask("parts"))
			require.Equal(t, fmt.Sprintf("%s, %d bytes\n", c.kind, len(content)), program.ask("map"))
			require.Equal(t, "ok\n", program.ask("ring"))
			require.Equal(t, "ok\n", program.ask("stage"))
			program.end()
			p.onMedium(img, mnt, path, ringed(content))
		})
	}
	t.Run("BAR, deaf", func(t *testing.T) {
		p := newCopiesPlace(t, "deaf", "LANEFS_SHIM_NO_VMM=1")
		img, mnt := p.image("image", 32), p.mkdir("mnt")
		p.ok("mount", "--gpu", "hip", "-o", "vram=16M", img, mnt)
		path := filepath.Join(mnt, "weights")
		require.NoError(t, os.WriteFile(path, random(1<<20), 0o644))
		c := p.client(path)
		require.Contains(t, c.fails("map"), "device memory has other bytes than the file")
		p.ok("umount", mnt)
		fsck(t, img)
	})
}

// TestHIPCopiesBench: patterns that kernels write and check pass through device memory that the controller reaches by the BAR; and a kernel
// rings a doorbell and finds the answer there.
func TestHIPCopiesBench(t *testing.T) {
	for how, right := range map[string]bool{"1": true, "deaf": false} {
		t.Run(how, func(t *testing.T) {
			p := newCopiesPlace(t, how)
			img := p.plain("image", 8)
			out, errs, err := p.run("bench", "--gpu", "hip", "--memory-mode", "8", "--destroy", "--reads", "50", "--size", "1M", "--count", "1000", "--lanes", "2", "--depth", "8", img)
			answer, said, failed := p.run("identify", "--gpu", "hip", "--ring", "gpu", img)
			if right {
				require.NoError(t, err, "%s%s", out, errs)
				require.Contains(t, out, "checked by a kernel, all right")
				require.NoError(t, failed, said)
				require.Contains(t, answer, "MN, SN there            LaneFS software controller")
				return
			}
			var exit *exec.ExitError
			require.True(t, errors.As(err, &exit) && exit.ExitCode() == exitFailed, "%s%s", out, errs)
			require.Contains(t, out, "WRONG: ")
			require.Error(t, failed)
			require.Contains(t, said, "does not hold the controller's answer")
		})
	}
}

// TestHIPCopiesLanes is mounts whose lanes have their queues in such memory. The kernels are the host's with calls at their accesses, which the
// stand-in has; see rocm.TestCopiesLanes, whose planted mistakes show that it would tell.
func TestHIPCopiesLanes(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the host's kernels are for x86-64")
	}
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is missing: apt-get install clang-19 lld-19")
	}
	image := filepath.Join(t.TempDir(), "hooked.so")
	require.NoError(t, rocm.Hooked(clang, "../../kernels", image))
	for _, mode := range []int{3, 11} {
		t.Run(itoa(mode), func(t *testing.T) {
			p := newCopiesPlace(t, "direct", "LANEFS_SHIM_KERNELS="+image)
			img, mnt := p.image("image", 32), p.mkdir("mnt")
			p.ok("mount", "--gpu", "hip", "-o", "lanes=gpu:1+cpu:0,memory-mode="+itoa(mode), img, mnt)
			want := random(400_000)
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "file"), want, 0o600))
			tool(t, "sync", "-f", mnt)
			require.NoError(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0))
			got, err := os.ReadFile(filepath.Join(mnt, "file"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got))
			r, err := p.stat(mnt)
			require.NoError(t, err)
			require.EqualValues(t, mode, r.Runtime.Memory)
			require.Len(t, r.Queues, 1)
			require.NotZero(t, r.Queues[0].Commands)
			p.ok("umount", mnt)
			fsck(t, img)
		})
	}
}
