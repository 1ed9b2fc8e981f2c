package vm

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// examination is the part of `lanefs doctor --json` that these tests read.
type examination struct {
	Findings []struct {
		Area, What, Found, Remedy string
		OK                        bool
	}
	Drives []struct {
		Address, Driver, Model string
		Group                  string `json:"iommu_group"`
		Users, Companions      []string
		Physical               string   `json:"physical_function"`
		Virtual                []string `json:"virtual_functions"`
		Ready, Bindable        bool
	}
	Memories []struct {
		Address string
		Size    uint64 `json:"bar_bytes"`
		Ready   bool
	}
	Pairs []struct {
		Drive, Memory string
		Same          bool `json:"same_root_complex"`
		Bridge        string
	}
	Memory   ladder `json:"memory_ladder"`
	Doorbell ladder `json:"doorbell_ladder"`
}

type ladder []struct {
	Name    string
	Missing []string
}

// reached is the best rung's name.
func (l ladder) reached() string {
	for _, r := range l {
		if len(r.Missing) == 0 {
			return r.Name
		}
	}
	return ""
}

func doctor(t testing.TB) (e examination) {
	t.Helper()
	lanefsJSON(t, &e, "doctor", "--json")
	return e
}

func (e *examination) line(t testing.TB, area, what string) (ok bool, found string) {
	t.Helper()
	for _, f := range e.Findings {
		if f.Area == area && f.What == what {
			return f.OK, f.Found
		}
	}
	t.Fatalf("the doctor says nothing of %s: %s", area, what)
	return false, ""
}

// TestDoctor compares the doctor's report with the machine that boot.sh boots, and with what TestMemoryModes does there.
func TestDoctor(t *testing.T) {
	dev := disk(t, nvme0)
	disk(t, shared0)
	disk(t, shared1)
	disk(t, many)
	mkfs(t, dev)
	_, err := os.Stat("/dev/iommu")
	iommufd := err == nil

	at := map[string]int{}
	kernelMount(t, dev, func(dir string) {
		e := doctor(t)
		ok, found := e.line(t, "IOMMU and VFIO", "IOMMU")
		require.True(t, ok, found)
		require.Contains(t, found, map[string]string{"amd64": "dmar0", "arm64": "smmu3"}[runtime.GOARCH])
		ok, _ = e.line(t, "IOMMU and VFIO", "IOMMUFD")
		require.Equal(t, iommufd, ok)
		ok, _ = e.line(t, "IOMMU and VFIO", "type1")
		require.True(t, ok)
		ok, found = e.line(t, "kernel", "VFIO_PCI_DMABUF")
		require.True(t, ok, found)
		for i, d := range e.Drives {
			at[d.Address] = i
			require.Equal(t, "QEMU NVMe Ctrl", d.Model)
		}
		require.Len(t, at, 6, "%+v", e.Drives)
		require.Equal(t, []string{filepath.Base(dev) + " is mounted at " + dir}, e.Drives[at[nvme0]].Users)
		require.False(t, e.Drives[at[nvme0]].Bindable)
		require.True(t, e.Drives[at[many]].Bindable)
		require.Equal(t, []string{shared1 + " (nvme)"}, e.Drives[at[shared0]].Companions)
		require.False(t, e.Drives[at[shared0]].Bindable)
		require.Len(t, e.Memories, 1)
		require.Equal(t, ivshmem, e.Memories[0].Address)
		require.EqualValues(t, 256<<20, e.Memories[0].Size)
		require.Len(t, e.Pairs, 6)
		for _, p := range e.Pairs {
			require.True(t, p.Same && p.Bridge == "", "%+v", p)
		}
		require.Equal(t, "3", e.Memory.reached(), "the plain memory is not bound yet: %+v", e.Memory)
	})

	bound(t, nvme0)
	bound(t, ivshmem)
	e := doctor(t)
	require.True(t, e.Drives[at[nvme0]].Ready)
	require.True(t, e.Memories[0].Ready)
	want := map[bool]string{true: "1", false: "2"}[iommufd]
	require.Equal(t, want, e.Memory.reached(), "what TestMemoryModes does on this kernel: %+v", e.Memory)
	require.Equal(t, "b", e.Doorbell.reached(), "%+v", e.Doorbell)
}
