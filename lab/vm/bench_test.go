package vm

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchOf is the part of `lanefs bench --json` that tests look at.
type benchOf struct {
	Simulated bool
	Runs      []struct {
		Mode     int `json:"memory_mode"`
		Doorbell string
		Refused  string
		Note     string
		Commands uint64
		Failed   uint64
		Checked  uint64 `json:"checked_blocks"`
		Wrong    uint64 `json:"wrong_blocks"`
		First    string `json:"first_wrong"`
		Steps    []struct {
			Step string
			Mean int64 `json:"mean_ns"`
		}
	}
}

func bench(t *testing.T, args ...string) (r benchOf) {
	t.Helper()
	lanefsJSON(t, &r, append([]string{"bench", "--json"}, args...)...)
	require.False(t, r.Simulated, "the controller is QEMU's")
	for _, l := range r.Runs {
		if l.Refused == "" {
			require.NotZero(t, l.Commands)
			require.Zero(t, l.Failed)
			require.Zero(t, l.Wrong, l.First)
		}
	}
	return r
}

// TestBench: QEMU's controller is measured, every memory mode with queues and data in another function's BAR; what kernels wrote is what the
// kernel's driver reads; a byte that it changes is found; and without --destroy the medium stays as it is.
func TestBench(t *testing.T) {
	disk(t, nvme0)
	require.Contains(t, refused(t, "bench", nvme0), "run `lanefs bind "+nvme0+"` first")
	region := []string{"--gpu", "host", "--size", "1M", "--lanes", "2", "--depth", "8", "--seed", "9"}
	at := func(args ...string) []string { return append(append(args, region...), nvme0) }
	t.Run("written", func(t *testing.T) {
		bound(t, nvme0)
		bound(t, ivshmem)
		r := bench(t, at("--destroy", "--reads", "0", "--sequential", "--count", "256")...)
		require.EqualValues(t, 256, r.Runs[0].Checked)
		r = bench(t, at("--destroy", "--reads", "50", "--count", "100", "--steps")...)
		require.Len(t, r.Runs[0].Steps, 5)
		require.NotZero(t, r.Runs[0].Steps[3].Mean, "the wait for the drive")
		r = bench(t, at("--all-modes", "--vram", ivshmem, "--verify", "--count", "16")...)
		measured := map[int]bool{}
		for _, l := range r.Runs {
			measured[l.Mode] = measured[l.Mode] || l.Refused == ""
			if l.Refused != "" {
				t.Log(l.Mode, l.Doorbell, l.Refused)
			}
			if l.Mode == 8 {
				require.Contains(t, l.Note, "completions and data are in different memories")
			}
		}
		for mode := range 16 {
			require.True(t, measured[mode], "memory mode %d", mode)
		}
	})
	f, err := os.OpenFile(disk(t, nvme0), os.O_RDWR, 0)
	require.NoError(t, err)
	b := make([]byte, 4096)
	_, err = f.ReadAt(b, 64<<10)
	require.NoError(t, err)
	require.NotEqual(t, make([]byte, 4096), b)
	b[100] ^= 1
	_, err = f.WriteAt(b, 64<<10)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	t.Run("changed", func(t *testing.T) {
		bound(t, nvme0)
		out, err := run("lanefs", append([]string{"bench"}, at("--verify", "--sequential", "--count", "256")...)...)
		require.Error(t, err)
		require.Contains(t, out, "WRONG: 1 of 256 blocks")
		require.Contains(t, out, "the block at LBA 128: ")
	})
}

// proofOf is the part of `lanefs prove --json` that tests look at.
type proofOf struct {
	Simulated  bool
	Held       int
	Failed     int
	Controller struct{ Model, Serial string }
	Machine    struct {
		Functions []struct{ Address, Path string }
	}
	Rungs []struct{ Area, Name, Outcome, Said string }
}

func (p *proofOf) outcome(t *testing.T, name string) (outcome, said string) {
	t.Helper()
	for _, g := range p.Rungs {
		if g.Name == name {
			return g.Outcome, g.Said
		}
	}
	t.Fatalf("there is no rung %q", name)
	return "", ""
}

// beginning is the first bytes of a disk.
func beginning(t *testing.T, dev string) []byte {
	t.Helper()
	f, err := os.Open(dev)
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, 8<<20)
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	return b
}

// TestProve: every rung that QEMU's controller and another function's BAR can have holds, on either way to the IOMMU; scratch blocks are put
// back; a function that the kernel has is said to be so.
func TestProve(t *testing.T) {
	dev := disk(t, nvme0)
	before := beginning(t, dev)
	said, err := run("lanefs", "prove", "--report", "none", nvme0)
	require.Error(t, err)
	require.Contains(t, said, "FAILED      it is there, and free for user space: ")
	t.Run("climb", func(t *testing.T) {
		bound(t, nvme0)
		bound(t, ivshmem)
		var p proofOf
		out := lanefs(t, "prove", "--json", "--gpu", "host", "--vram", ivshmem, "--scratch", "2000-2999", "--time", "100ms", "--report", "none", nvme0)
		require.NoError(t, json.Unmarshal([]byte(out), &p))
		for _, g := range p.Rungs {
			t.Log(g.Outcome, g.Area, g.Name, g.Said)
		}
		require.False(t, p.Simulated)
		require.Zero(t, p.Failed)
		require.Equal(t, "QEMU NVMe Ctrl", p.Controller.Model)
		require.NotContains(t, out, "LANEFS-0", "the serial number is left out")
		for _, name := range []string{"an IOMMU group of its own", "its registers can be mapped", "queues and data in host memory", "doorbells over the bridge",
			"the controller refuses an invalid LBA", "no interrupts: completions are polled", "a reset of the controller, and the same bytes after",
			"patterns that kernels write and check", "what was there is put back", "memory mode 11: submission queues, completion queues and data",
			"memory mode 15: submission queues, completion queues, the bridge's doorbells and data"} {
			outcome, why := p.outcome(t, name)
			require.Equal(t, "held", outcome, "%s: %s", name, why)
		}
	})
	require.True(t, bytes.Equal(before, beginning(t, disk(t, nvme0))), "the medium is as it was")
}

// TestProveGPU: the rungs of a GPU, with the stand-in for ROCm, on QEMU's controller: with its I/O memory and, where that is refused, over the
// bridge.
func TestProveGPU(t *testing.T) {
	for name, env := range map[string][]string{"bar": {"LANEFS_SHIM_HOST", driversMemory(t)}, "bridge": {"LANEFS_SHIM_NO_IOMEM", "1"}} {
		t.Run(name, func(t *testing.T) {
			standIn(t, env...)
			bound(t, nvme0)
			var p proofOf
			out := lanefs(t, "prove", "--json", "--gpu", "hip", "--time", "100ms", "--report", "none", nvme0)
			require.NoError(t, json.Unmarshal([]byte(out), &p))
			for _, g := range p.Rungs {
				t.Log(g.Outcome, g.Area, g.Name, g.Said)
			}
			require.Zero(t, p.Failed)
			by := "lanes on the GPU, queues and data in host memory, doorbells by "
			iomem, why := p.outcome(t, by+"iomem")
			require.Equal(t, map[string]string{"bar": "held", "bridge": "impossible"}[name], iomem, why)
			for _, rung := range []string{by + "bridge", "its runtime opens, and runs a kernel", "the lanes move to the CPU, and read the same bytes"} {
				outcome, why := p.outcome(t, rung)
				require.Equal(t, "held", outcome, "%s: %s", rung, why)
			}
		})
	}
}
