package vm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// There is no GPU in the guest. These tests use a stand-in for ROCm (lab/rocm), whose device is the CPU: its kernels run on
// threads of their own, resident as a GPU's are. They cover everything between a GPU's lanes and a PCI function except the
// hardware: which memory the IOMMU maps, how the BAR is registered, and what happens when either is refused.

// standIn puts the stand-in, and nothing else of ROCm, on the loader's path for the length of the test.
func standIn(t *testing.T, env ...string) {
	t.Helper()
	onPC(t, "the stand-in for ROCm has x86-64 code")
	t.Setenv("LD_LIBRARY_PATH", "/lib/rocm-shim")
	for i := 0; i < len(env); i += 2 {
		t.Setenv(env[i], env[i+1])
	}
}

// standInName is the stand-in's name as a GPU.
const standInName = "LaneFS shim over plain memory"

// driversMemory makes the stand-in allocate pinned memory from the ivshmem function's BAR. Such a mapping of PFNs, as amdgpu's
// own memory may be, cannot be pinned by IOMMUFD: memory that the drive reaches must be elsewhere.
func driversMemory(t *testing.T) string {
	t.Helper()
	dir := "/sys/bus/pci/devices/" + ivshmem
	require.NoError(t, os.WriteFile(filepath.Join(dir, "enable"), []byte("1"), 0))
	t.Cleanup(func() { os.WriteFile(filepath.Join(dir, "enable"), []byte("0"), 0) })
	return filepath.Join(dir, "resource2")
}

// statOf returns the part of `lanefs stat --json` about the runtime.
type statOf struct {
	ReadOnly  bool `json:"read_only"`
	Simulated bool
	Runtime   struct {
		Name, Device, Failed string
		Mode                 int    `json:"memory_mode"`
		Bells                string `json:"doorbells"`
		Refused              []string
		Chosen               *struct {
			Late uint64 `json:"cpu_gpu_late"`
		} `json:"chosen"`
	}
}

func stat(t *testing.T, dir string) (s statOf) {
	t.Helper()
	lanefsJSON(t, &s, "stat", "--json", dir)
	return s
}

// TestGPURuntime: the lanes of a GPU's runtime drive a PCI function under a mount.
func TestGPURuntime(t *testing.T) {
	t.Run("bar", func(t *testing.T) {
		standIn(t, "LANEFS_SHIM_HOST", driversMemory(t))
		roundTripSeen(t, nvme0, func(dir string) {
			t.Log(lanefs(t, "stat", dir))
			s := stat(t, dir)
			require.Equal(t, "hip", s.Runtime.Name)
			require.Equal(t, standInName, s.Runtime.Device)
			require.False(t, s.Simulated, "the controller is QEMU's")
			require.Equal(t, "iomem", s.Runtime.Bells)
			require.Zero(t, s.Runtime.Mode)
			require.Empty(t, s.Runtime.Refused)
		}, nil, "--gpu", "hip", "-o", "lanes=2,memory-mode=0")
	})
	t.Run("bridge", func(t *testing.T) {
		standIn(t, "LANEFS_SHIM_NO_IOMEM", "1")
		roundTripSeen(t, nvme0, func(dir string) {
			t.Log(lanefs(t, "stat", dir))
			s := stat(t, dir)
			require.Equal(t, "hip", s.Runtime.Name, "auto takes the GPU that it finds")
			require.Equal(t, "bridge", s.Runtime.Bells)
			if _, err := os.Stat("/dev/iommu"); err == nil {
				require.Equal(t, 1, s.Runtime.Mode, "the stand-in's device memory is a memfd")
				require.Len(t, s.Runtime.Refused, 2)
			} else {
				require.Zero(t, s.Runtime.Mode, "type1 would not hear when a GPU's memory moves")
				require.Len(t, s.Runtime.Refused, 3)
				require.Contains(t, s.Runtime.Refused[2], "type1 would not hear when the GPU moves this ")
			}
			require.Regexp(t, "doorbells by iomem: .*hipErrorInvalidValue", s.Runtime.Refused[0])
			require.Regexp(t, "doorbells by direct: .*importing BAR 0: ", s.Runtime.Refused[1])
		}, nil, "-o", "lanes=1")
	})
	t.Run("identify", func(t *testing.T) {
		standIn(t, "LANEFS_SHIM_HOST", driversMemory(t))
		bound(t, nvme0)
		if _, err := os.Stat("/dev/iommu"); err != nil {
			require.Contains(t, refused(t, "identify", "--ring", "gpu", "--gpu", "hip", nvme0), "type1 would not hear when the GPU moves this ")
			return
		}
		said := lanefs(t, "identify", "--ring", "gpu", "--gpu", "hip", nvme0)
		t.Log(said)
		require.Regexp(t, `rung by a kernel +runtime hip`, said)
		require.Regexp(t, `MN, SN there +QEMU NVMe Ctrl, LANEFS-0`, said)
	})
}

// TestGPURuntimeRefused: a mount uses the GPU that is named, or fails with one line.
func TestGPURuntimeRefused(t *testing.T) {
	bound(t, nvme0)
	require.Contains(t, refused(t, "mount", "--gpu", "hip", nvme0, t.TempDir()), "AMD's ROCm is not on this machine")
	require.Contains(t, refused(t, "identify", "--gpu", "cuda", nvme0), "cuda runtime: ")
	standIn(t)
	require.Contains(t, refused(t, "mount", "--gpu", "hip", "--vram", ivshmem, nvme0, t.TempDir()), "is for --gpu host")
	t.Setenv("LANEFS_SHIM_NO_IOMEM", "1")
	said := refused(t, "mount", "--gpu", "hip", "-o", "doorbell=iomem", nvme0, t.TempDir())
	require.Contains(t, said, "registering BAR 0 with hip: ")
}

// TestLanesOfBothKinds: lanes on the CPU beside a GPU's drive a PCI function, by default, too. Kernels that do not begin for a while hold up no request: it goes by the CPU, and
// the GPU is not given up.
func TestLanesOfBothKinds(t *testing.T) {
	for name, options := range map[string]string{"default": "gpu_error=host", "host memory": "lanes=gpu:2+cpu:2,memory-mode=0", "bridge": "lanes=gpu:1+cpu:1,doorbell=bridge",
		"device memory": "memory-mode=11"} {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat("/dev/iommu"); err != nil && name == "device memory" {
				t.Skip("a GPU's memory goes by IOMMUFD only, which this kernel does not have")
			}
			fail := filepath.Join(t.TempDir(), "fail")
			standIn(t, "LANEFS_SHIM_FAIL", fail)
			roundTripSeen(t, nvme0, func(dir string) {
				s := stat(t, dir)
				require.NotNil(t, s.Runtime.Chosen, "there are lanes on the CPU")
				file, copied := filepath.Join(dir, "dd"), filepath.Join(t.TempDir(), "copied")
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				for round := 0; ; round++ {
					require.Less(t, round, 20, "the GPU's lanes were never late")
					time.Sleep(100 * time.Millisecond) // kernels end that find nothing to do
					require.NoError(t, os.WriteFile(fail, []byte("hang"), 0o600))
					done := make(chan error, 1)
					go func() { done <- dd(file, copied, "bs=64k", "iflag=direct") }()
					for end := time.Now().Add(time.Second); len(done) == 0 && time.Now().Before(end); {
						time.Sleep(time.Millisecond)
					}
					require.NoError(t, os.Remove(fail))
					require.NoError(t, <-done)
					got, err := os.ReadFile(copied)
					require.NoError(t, err)
					require.Equal(t, want, got)
					if s = stat(t, dir); s.Runtime.Chosen.Late > 0 {
						break
					}
				}
				require.Empty(t, s.Runtime.Failed, "late is not failed")
			}, nil, "--gpu", "hip", "-o", options)
		})
	}
}

// TestGPURuntimeFails: the GPU fails under a mount of a drive. The lanes move to the CPU, where all data is found; or, with
// gpu_error=ro, the mount can only be read there.
func TestGPURuntimeFails(t *testing.T) {
	for _, then := range []string{"host", "ro"} {
		t.Run(then, func(t *testing.T) {
			fail := filepath.Join(t.TempDir(), "fail")
			standIn(t, "LANEFS_SHIM_FAIL", fail)
			mkfs(t, disk(t, nvme0))
			want := pattern(1<<20, 3)
			source := filepath.Join(t.TempDir(), "want")
			require.NoError(t, os.WriteFile(source, want, 0o600))
			t.Run("lanefs", func(t *testing.T) {
				bound(t, nvme0)
				dir := mount(t, nvme0, "--gpu", "hip", "-o", "lanes=2,gpu_error="+then)
				require.NoError(t, dd(source, filepath.Join(dir, "before"), "bs=1M"))
				require.NoError(t, os.WriteFile(fail, []byte("refuse"), 0o600))
				err := dd(source, filepath.Join(dir, "after"), "bs=1M")
				s := stat(t, dir)
				require.Contains(t, s.Runtime.Failed, "unspecified launch failure")
				if then == "host" {
					require.NoError(t, err)
					require.False(t, s.ReadOnly)
				} else {
					require.Error(t, err)
					for end := time.Now().Add(time.Minute); !s.ReadOnly && time.Now().Before(end); s = stat(t, dir) {
						time.Sleep(100 * time.Millisecond) // the next commit meets the failure
					}
					require.True(t, s.ReadOnly)
				}
				require.NoError(t, unix.Statfs(dir, &unix.Statfs_t{}))
				got, err := os.ReadFile(filepath.Join(dir, "before"))
				require.NoError(t, err)
				require.Equal(t, want, got)
				said, err := run("lanefs", "umount", dir)
				if then == "host" {
					require.NoError(t, err) // with "ro" it reports what could not be written
				}
				require.NotContains(t, said, "DMA mappings left")
			})
			dev := disk(t, nvme0)
			kernelMount(t, dev, func(dir string) { // replays the journal
				names := []string{"before", "after"}
				if then == "ro" {
					names = names[:1]
				}
				for _, name := range names {
					got, err := os.ReadFile(filepath.Join(dir, name))
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
			})
			fsck(t, dev)
		})
	}
}
