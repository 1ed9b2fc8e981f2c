package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/fs/uring"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
)

const (
	drive  = "0000:00:03.0"
	memory = "0000:00:04.0"
)

// A small virtual machine without an IOMMU, drives or VFIO.
func TestBareMachine(t *testing.T) {
	m := machine(t, "bare-vm")
	r := m.examine()
	require.True(t, r.Healthy())
	require.True(t, line(t, r, Basics, "FUSE").OK)
	require.Contains(t, line(t, r, IOMMU, "IOMMU").Remedy, "firmware")
	require.Equal(t, "n", r.Kernel.Options["IOMMUFD"])
	require.Contains(t, line(t, r, Kernel, "VFIO_PCI_DMABUF").Remedy, "Linux 6.19 or newer")
	require.Empty(t, r.Drives)
	require.Equal(t, -1, r.Memory.Result())
	require.Equal(t, -1, r.Doorbell.Result())
	require.Contains(t, line(t, r, Result, "memory").Remedy, "an NVMe drive")

	require.Contains(t, line(t, r, Basics, "FUSE over io_uring").Remedy, "Linux 6.14")
	m.write("sys/module/fuse/parameters/enable_uring", "N\n")
	require.Contains(t, line(t, m.examine(), Basics, "FUSE over io_uring").Remedy, "options fuse enable_uring=1")
	m.write("sys/module/fuse/parameters/enable_uring", "Y\n")
	require.True(t, line(t, m.examine(), Basics, "FUSE over io_uring").OK)
	refused := func() error { return &uring.Unavailable{Why: "refused", Remedy: "let it", Err: unix.EPERM} }
	f := line(t, Examine(Options{Root: m.root, Rings: Rings{Try: refused}}), Basics, "FUSE over io_uring")
	require.Equal(t, Finding{Area: Basics, What: "FUSE over io_uring", Found: "refused: operation not permitted: requests come by /dev/fuse", Remedy: "let it"}, f)
	f = line(t, Examine(Options{Root: m.root, Rings: Rings{Try: func() error { return nil }, Auto: true}}), Basics, "FUSE over io_uring")
	require.Equal(t, Finding{Area: Basics, What: "FUSE over io_uring", OK: true, Found: "offered, and taken"}, f)

	// Root of a container that has no capabilities to mount, or to lock memory.
	m.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\n")
	r = m.examine()
	require.False(t, r.Healthy())
	require.Equal(t, Finding{Area: Basics, What: "FUSE", Needed: true, Found: "/dev/fuse opens, but root has no CAP_SYS_ADMIN here, to mount",
		Remedy: "give the container CAP_SYS_ADMIN"}, line(t, r, Basics, "FUSE"))
	require.Equal(t, "8 MiB", line(t, r, Basics, "locked memory limit").Found)
	m.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a82465fb\n")
	r = m.examine()
	require.True(t, line(t, r, Basics, "FUSE").OK)
	require.Equal(t, "8 MiB; root's mounts are exempt", line(t, r, Basics, "locked memory limit").Found)
	m.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n")
	require.True(t, line(t, m.examine(), Basics, "FUSE").OK, "by fusermount3")

	m.remove("dev/fuse")
	r = m.examine()
	require.False(t, r.Healthy())
	require.Contains(t, line(t, r, Basics, "FUSE").Remedy, "modprobe fuse")
}

// The lab's machine with Debian's kernel: type1 only, nothing bound.
func TestDebianInTheLab(t *testing.T) {
	m := machine(t, "lab-debian")
	r := m.examine()
	require.Contains(t, line(t, r, IOMMU, "IOMMU").Found, "on: dmar0; 9 groups")
	require.False(t, line(t, r, IOMMU, "IOMMUFD").OK)
	require.True(t, line(t, r, IOMMU, "type1").OK)
	require.Len(t, r.Drives, 4)
	require.True(t, r.Drives[0].Bindable)
	require.Equal(t, []string{"nvme0n1"}, r.Drives[0].Disks)
	require.Equal(t, "QEMU NVMe Ctrl", r.Drives[0].Model)
	require.Equal(t, []string{"0000:00:05.1 (nvme)"}, r.Drives[1].Companions)
	require.False(t, r.Drives[1].Bindable)
	require.Len(t, r.Drives[3].Disks, 4)
	require.Len(t, r.Memories, 1)
	require.EqualValues(t, 256<<20, r.Memories[0].BARSize)
	require.True(t, r.Pairs[0].SameComplex)
	require.Equal(t, 2, r.Memory.Result(), "pinned host memory")
	require.Equal(t, "3", r.Memory[2].Name)
	require.Contains(t, r.Memory[1].Missing, "lanefs bind "+memory)

	t.Run("bound", func(t *testing.T) {
		m := machine(t, "lab-debian")
		m.bind(drive, "1")
		m.bind(memory, "2")
		r := m.examine()
		require.True(t, r.Drives[0].Ready)
		require.Contains(t, line(t, r, Drives, drive).Found, "ready: /dev/vfio/1")
		require.Equal(t, 1, r.Memory.Result(), "type1 follows the process's mapping: %+v", r.Memory)
	})
	t.Run("IOMMUFD", func(t *testing.T) {
		m := machine(t, "lab-debian")
		m.bind(drive, "1")
		m.bind(memory, "2")
		m.write("dev/iommu", "")
		require.Equal(t, 0, m.examine().Memory.Result())
		// An older kernel has IOMMUFD and takes no DMA-BUFs.
		m.write("proc/sys/kernel/osrelease", "6.12.1-amd64")
		m.write("proc/kallsyms", "")
		m.write("boot/config-6.12.1-amd64", "CONFIG_IOMMUFD=m\nCONFIG_VFIO_DEVICE_CDEV=y\n# CONFIG_VFIO_PCI_DMABUF is not set\n")
		r := m.examine()
		require.Equal(t, "/boot/config-6.12.1-amd64", r.Kernel.Config)
		require.Equal(t, "m", r.Kernel.Options["IOMMUFD"])
		require.Equal(t, 1, r.Memory.Result())
		require.Contains(t, strings.Join(r.Memory[0].Missing, ", "), "Linux 6.19 or newer")
	})
	t.Run("mounted", func(t *testing.T) {
		m := machine(t, "lab-debian")
		m.write("proc/77/mountinfo", "40 1 259:0 / /data rw - ext4 /dev/nvme0n1 rw\n")
		m.write("sys/devices/pci0000:00/"+drive+"/nvme/nvme0/nvme0n1/dev", "259:0\n")
		r := m.examine()
		require.Equal(t, []string{"nvme0n1 is mounted at /data"}, r.Drives[0].Users)
		require.False(t, r.Drives[0].Bindable)
		require.Contains(t, line(t, r, Drives, drive).Remedy, "free it first")
	})
	t.Run("virtual function", func(t *testing.T) {
		m := machine(t, "lab-debian")
		const virtual = "0000:00:06.0"
		m.link("../"+virtual, "sys/devices/pci0000:00/"+drive+"/virtfn0")
		m.link("../"+drive, "sys/devices/pci0000:00/"+virtual+"/physfn")
		r := m.examine()
		require.Equal(t, []string{virtual}, r.Drives[0].Virtual)
		require.False(t, r.Drives[0].Bindable)
		require.Contains(t, line(t, r, Drives, drive).Remedy, "use those")
		require.EqualValues(t, drive, r.Drives[3].Physical)
		require.True(t, r.Drives[3].Bindable)
		require.Contains(t, line(t, r, Drives, virtual).Found, "a virtual function of "+drive)
	})
	t.Run("no IOMMU", func(t *testing.T) {
		m := machine(t, "lab-debian")
		m.remove("sys/kernel/iommu_groups")
		m.remove("sys/class/iommu")
		m.remove("sys/devices/pci0000:00/" + drive + "/iommu_group")
		r := m.examine()
		require.False(t, line(t, r, IOMMU, "IOMMU").OK)
		require.False(t, r.Drives[0].Bindable)
		require.Contains(t, line(t, r, Drives, drive).Remedy, "IOMMU")
	})
}

// TestNext: what to do comes in an order in which it can be done, each with the command.
func TestNext(t *testing.T) {
	commands := func(r *Report) (all []string) {
		for _, s := range r.Next {
			require.NotEmpty(t, s.What)
			all = append(all, s.Command)
		}
		return all
	}
	const image = "truncate -s 1G disk.img && mkfs.ext4 -q disk.img && mkdir -p mnt && lanefs mount disk.img mnt"
	m := machine(t, "bare-vm")
	require.Equal(t, []string{image}, commands(m.examine()))
	m.write("sys/module/fuse/parameters/enable_uring", "N\n")
	m.write("proc/sys/fs/fuse/max_pages_limit", "32\n")
	require.Equal(t, []string{"echo 256 > /proc/sys/fs/fuse/max_pages_limit", "echo Y > /sys/module/fuse/parameters/enable_uring", image}, commands(m.examine()))
	m.remove("dev/fuse")
	require.Equal(t, "modprobe fuse", commands(m.examine())[0])
	require.NotContains(t, commands(m.examine()), image)
	m = machine(t, "bare-vm")
	m.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n") // the volume is then this user's, who finds mkfs.ext4, too
	require.Equal(t, []string{strings.Replace(image, "mkfs.ext4 -q", "PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -E root_owner=$(id -u):$(id -g)", 1)}, commands(m.examine()))

	m = machine(t, "lab-debian")
	all := strings.Join(commands(m.examine()), "\n")
	require.Contains(t, all, "lanefs bind "+drive+"\nlanefs identify "+drive+"\nmkdir -p mnt && lanefs mount "+drive+" mnt")
	m.bind(drive, "1")
	all = strings.Join(commands(m.examine()), "\n")
	require.NotContains(t, all, "lanefs bind")
	require.Contains(t, all, "lanefs identify "+drive)
	m.remove("sys/kernel/iommu_groups")
	m.remove("sys/class/iommu")
	var out bytes.Buffer
	require.NoError(t, m.examine().Print(&out))
	require.Contains(t, out.String(), "what to do next, in this order\n  1.  ")
}

// bind makes the tree as vfio-pci leaves a function that type1 opens.
func (r tree) bind(addr, group string) {
	r.link("../../../bus/pci/drivers/vfio-pci", "sys/devices/pci0000:00/"+addr+"/driver")
	r.remove("sys/devices/pci0000:00/" + addr + "/nvme")
	r.write("dev/vfio/"+group, "")
}

// The lab's machine, its plain memory made an AMD GPU: what only such a machine has.
func TestAMD(t *testing.T) {
	m := machine(t, "lab-debian")
	m.bind(drive, "1")
	m.write("dev/iommu", "")
	fn := "sys/devices/pci0000:00/" + memory + "/"
	m.write(fn+"class", "0x030000\n")
	m.write(fn+"vendor", "0x1002\n")
	m.link("../../../bus/pci/drivers/amdgpu", fn+"driver")
	m.write(fn+"mem_info_vram_total", "17163091968\n")
	r := m.examine()
	f := line(t, r, Device, memory)
	require.Contains(t, f.Found, "BAR 2 of 256 MiB for 16.0 GiB: no large BAR")
	require.Contains(t, f.Remedy, "Above 4G Decoding and Resizable BAR")
	require.Contains(t, f.Remedy, "/dev/kfd")

	m.write(fn+"mem_info_vram_total", "268435456\n") // as large as what is shown
	m.write("dev/kfd", "")
	r = m.examine(Runtime{Name: "hip", Open: func() (gpu.Runtime, error) { return fakeFacts(t, memory) }})
	require.True(t, r.Memories[0].LargeBAR)
	require.Equal(t, "hip", r.Memories[0].Runtime)
	require.Empty(t, r.Memory[1].Missing)
	require.Equal(t, []string{"amdgpu with physical address lists (kernel patches, docs/HARDWARE.md)"}, r.Memory[0].Missing)
	require.Equal(t, "c", r.Doorbell[r.Doorbell.Result()].Name)

	m.write("proc/kallsyms", "0 T vfio_pci_core_feature_dma_buf\nffffffffc0a1 t amdgpu_dma_buf_map_phys\t[amdgpu]\n")
	r = m.examine(Runtime{Name: "hip", Open: func() (gpu.Runtime, error) { return fakeFacts(t, memory) }})
	require.Empty(t, r.Memory[0].Missing)
}

// onFunction is the host runtime that says it is a GPU at an address.
type onFunction struct {
	gpu.Runtime
	addr string
}

func (o onFunction) Facts() gpu.Facts {
	f := o.Runtime.Facts()
	f.PCI, f.Memory = o.addr, 256<<20
	return f
}

func fakeFacts(t *testing.T, addr string) (gpu.Runtime, error) {
	rt, err := host.Open(host.Options{})
	require.NoError(t, err)
	return onFunction{rt, addr}, nil
}

func TestRuntimes(t *testing.T) {
	m := machine(t, "bare-vm")
	broken := func() (gpu.Runtime, error) { return nil, errors.Join(errors.New("first"), errors.New("second")) }
	works := func() (gpu.Runtime, error) { return host.Open(host.Options{}) }
	r := m.examine(Runtime{Name: "host", Needed: true, Open: works}, Runtime{Name: "cuda", Open: broken})
	require.True(t, line(t, r, Lanes, "host runtime").OK)
	require.Equal(t, "first; second", line(t, r, Lanes, "cuda runtime").Found)
	require.True(t, r.Healthy(), "a GPU is not needed")
	require.False(t, m.examine(Runtime{Name: "host", Needed: true, Open: broken}).Healthy())
}

// Whether MPS runs, by its processes and pipes; without CUDA nothing is said of it.
func TestMPS(t *testing.T) {
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "")
	m := machine(t, "bare-vm")
	works := func() (gpu.Runtime, error) { return host.Open(host.Options{}) }
	for _, f := range m.examine().Findings {
		require.NotContains(t, f.What, "MPS")
	}
	look := func() Finding { return line(t, m.examine(Runtime{Name: "cuda", Open: works}), Lanes, "CUDA's MPS") }
	m.write("proc/77/comm", "nvidia-persiste\n")
	require.False(t, look().OK)
	require.Contains(t, look().Remedy, "nvidia-cuda-mps-control -d before the mount")
	m.write("proc/1234/comm", "nvidia-cuda-mps\n")
	require.False(t, look().OK)
	require.Contains(t, look().Found, "runs (process 1234), but has no pipes in /tmp/nvidia-mps")
	m.write("tmp/nvidia-mps/control", "")
	require.True(t, look().OK)
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/pipes")
	require.Contains(t, look().Remedy, "set CUDA_MPS_PIPE_DIRECTORY")
	m.write("run/pipes/control", "")
	require.Contains(t, look().Found, "pipes in /run/pipes): lanes and the kernels of programs run side by side")
}

func TestMemlock(t *testing.T) {
	m := machine(t, "bare-vm")
	m.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n")
	f := line(t, m.examine(), Basics, "locked memory limit")
	require.Equal(t, "8 MiB", f.Found)
	require.False(t, f.OK)
	require.Contains(t, f.Remedy, "LimitMEMLOCK")
	m.write("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes     \n")
	require.True(t, line(t, m.examine(), Basics, "locked memory limit").OK)
	m.write("proc/self/limits", "Max locked memory\n")
	require.False(t, line(t, m.examine(), Basics, "locked memory limit").OK)
}

// An empty tree is a machine of which nothing can be read: findings, no panic.
func TestNothing(t *testing.T) {
	r := tree{t, t.TempDir()}.examine()
	require.False(t, r.Healthy())
	var out bytes.Buffer
	require.NoError(t, r.Print(&out))
	require.Contains(t, out.String(), "FAIL  FUSE")
	require.NotContains(t, out.String(), "%!")
}

// This machine, whatever it is: every line is whole, and what is wrong has a remedy or says why.
func TestThisMachine(t *testing.T) {
	r := Examine(Options{})
	for _, f := range r.Findings {
		require.NotEmpty(t, f.Area)
		require.NotEmpty(t, f.What)
		require.NotEmpty(t, f.Found, f.What)
		require.False(t, strings.ContainsAny(f.Found+f.Remedy, "\n"), "%+v", f)
	}
	b, err := json.Marshal(r)
	require.NoError(t, err)
	var back Report
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, r.Findings, back.Findings)
}

func TestReleases(t *testing.T) {
	for release, want := range map[string]bool{"6.19": true, "6.19.2-amd64": true, "7.0-rc1": true, "10.1": true, "6.18.44": false, "6.2": false, "5.99": false, "": false} {
		require.Equal(t, want, atLeast(release, "6.19"), release)
	}
}
