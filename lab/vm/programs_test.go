package vm

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHostPrograms: with the host runtime a drive serves a program in C, until the mount ends under it, and one whose memory is not there, or goes.
func TestHostPrograms(t *testing.T) {
	mkfs(t, disk(t, nvme0))
	t.Run("lanefs", hostPrograms)
	fsck(t, disk(t, nvme0))
}

func hostPrograms(t *testing.T) {
	bound(t, nvme0)
	dir := mount(t, nvme0, "--gpu", "host", "-o", "lanes=2,vram=64M")
	content := make([]byte, 2<<20)
	for i := range content {
		content[i] = byte(i % 251)
	}
	path, other := filepath.Join(dir, "weights"), filepath.Join(t.TempDir(), "other")
	for _, file := range []string{path, other} {
		require.NoError(t, os.WriteFile(file, content, 0o600))
	}
	require.Equal(t, "ok\n", must(t, "testmemory", path))
	cmd := exec.Command("/bin/test-c", path, other)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	said, _ := lines.ReadString('\n')
	require.Equal(t, "ok\n", said, &errs)
	lanefs(t, "umount", dir)
	said, _ = lines.ReadString('\n')
	require.Equal(t, "gone\n", said, &errs)
	require.NoError(t, cmd.Wait())
}

// TestGPUPrograms: a GPU's runtime with a drive serves a program in C: map, commit, rings, batches through its stage, on streams, by legacy IPC. Over IOMMUFD the drive
// reaches the stand-in's device memory. Over type1 it reaches no GPU's, and the daemon's stage and copy engine stand between.
func TestGPUPrograms(t *testing.T) {
	for k, vfio := range []string{"auto", "type1"} { // auto is type1 where there is no IOMMUFD
		t.Run(vfio, func(t *testing.T) {
			skipOthers(t, k)
			standIn(t, "LANEFS_SHIM_HOST", driversMemory(t))
			_, err := os.Stat("/dev/iommu")
			direct := vfio == "auto" && err == nil
			if _, err := os.Stat("/dev/vfio/vfio"); vfio == "type1" && err != nil {
				t.Skip("this kernel has no type1")
			}
			mkfs(t, disk(t, nvme0))
			content := pattern(3<<20+776, 5)
			t.Run("lanefs", func(t *testing.T) {
				bound(t, nvme0)
				args := []string{"--gpu", "hip", "-o", "lanes=2,vram=48M"}
				if vfio == "type1" {
					args = append(args, "-o", "vfio=type1")
				}
				dir := mount(t, nvme0, args...)
				path := filepath.Join(dir, "weights")
				require.NoError(t, os.WriteFile(path, content, 0o600))
				require.Equal(t, "ok\n", must(t, "env", "-u", "LANEFS_SHIM_HOST", "testgpu", path, "3"), "the two would have one BAR")
				var r struct {
					Unreached string
					Staged    int64
					Loads     int64
					Rings     struct{ Device, Stage, Copied struct{ Requests int64 } }
				}
				lanefsJSON(t, &r, "vram", "ls", "--json", dir)
				t.Log(lanefs(t, "stat", dir))
				require.NotZero(t, r.Loads)
				require.NotZero(t, r.Rings.Stage.Requests)
				if direct {
					require.Empty(t, r.Unreached)
					require.NotZero(t, r.Rings.Device.Requests)
					require.NotZero(t, r.Rings.Copied.Requests, "legacy IPC gives the drive no DMA-BUF")
				} else {
					require.Contains(t, r.Unreached, "type1 would not hear when the GPU moves this ")
					require.Greater(t, r.Staged, int64(len(content)))
					require.Contains(t, lanefs(t, "stat", dir), "which the drive does not reach: ")
				}
				lanefs(t, "umount", dir)
			})
			dev := disk(t, nvme0)
			fsck(t, dev)
			kernelMount(t, dev, func(dir string) {
				got, err := os.ReadFile(filepath.Join(dir, "weights"))
				require.NoError(t, err)
				require.Equal(t, content, got, "the program leaves the file as it was")
			})
		})
	}
}

// TestGPUPython: likewise a program in Python, the SDK's tests of an AMD GPU: map, commit, rings, batches by copies and by the kernel.
func TestGPUPython(t *testing.T) {
	if _, err := os.Stat("/lib/sdk-python"); err != nil {
		t.Skip("needs Debian's python3 on the machine that made this guest's root: apt-get install python3")
	}
	for k, vfio := range []string{"auto", "type1"} {
		t.Run(vfio, func(t *testing.T) {
			skipOthers(t, k)
			standIn(t, "LANEFS_SHIM_HOST", driversMemory(t))
			if _, err := os.Stat("/dev/vfio/vfio"); vfio == "type1" && err != nil {
				t.Skip("this kernel has no type1")
			}
			mkfs(t, disk(t, nvme0))
			t.Run("lanefs", func(t *testing.T) {
				bound(t, nvme0)
				args := []string{"--gpu", "hip", "-o", "lanes=2,vram=48M"}
				if vfio == "type1" {
					args = append(args, "-o", "vfio=type1")
				}
				dir := mount(t, nvme0, args...)
				t.Log(must(t, "env", "-u", "LANEFS_SHIM_HOST", "PYTHONHOME=/usr", "PYTHONPATH=/lib/sdk-python", "PYTHONDONTWRITEBYTECODE=1", "LANEFS_TEST_DIR="+dir, "LANEFS_TEST_KIND=3",
					"python3", "/lib/sdk-python/tests/test_hip.py"))
				lanefs(t, "umount", dir)
			})
			fsck(t, disk(t, nvme0))
		})
	}
}
