package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/blockdev/namespace"
	"github.com/lanefs/lanefs/gpu"
	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/pcie"
)

// modes is how many there are.
const modes = controller.MemoryMode(16)

// pattern returns n bytes that occur nowhere else.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(i)*0x9e3779b97f4a7c15+uint64(seed)<<56+1)
	}
	return b
}

// TestMemoryModes moves data with the queues and the data in each place, and checks the bytes on both sides: in the BAR that
// stands for the device's memory, and on the medium, through the kernel's own driver afterwards.
func TestMemoryModes(t *testing.T) {
	const n = 256 << 10
	disk(t, nvme0)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		bound(t, ivshmem)
		for mode := range modes {
			t.Run(fmt.Sprint(mode), func(t *testing.T) { oneMode(t, mode, n) })
		}
	})
	f, err := os.Open(disk(t, nvme0))
	require.NoError(t, err)
	defer f.Close()
	for mode := range modes {
		got := make([]byte, n)
		_, err := f.ReadAt(got, int64(mode)*n)
		require.NoError(t, err)
		require.True(t, bytes.Equal(pattern(n, byte(mode)), got), "mode %d: the kernel reads something else from the medium", mode)
	}
}

func oneMode(t *testing.T, mode controller.MemoryMode, n int) {
	vram, err := vfio.Open(ivshmem, vfio.Options{BAR: 2})
	require.NoError(t, err)
	defer func() { require.NoError(t, vram.Close()) }()
	bar := vram.BAR()
	clear(bar)
	bank := &host.Bank{Name: ivshmem, Bytes: bar, DMABUF: gpu.Export{FD: -1, Size: int64(len(bar)), Kind: gpu.ExportDMABUF}, Check: vram.Reachable}
	if vram.Backend() == vfio.IOMMUFD {
		bank.DMABUF, err = vram.Export(2, 0, int64(len(bar)))
		require.NoError(t, err)
		defer unix.Close(bank.DMABUF.FD)
	}
	rt, err := host.Open(host.Options{Bank: bank})
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Close()) }()
	dev, err := pcie.Open(nvme0, vfio.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	t.Logf("mode %d through %s", mode, dev.Backend())
	place, err := mode.Placement()
	require.NoError(t, err)
	c, err := controller.Open(controller.Config{Runtime: rt, Transport: dev, Placement: place})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	e, err := engine.New(c, engine.Config{Lanes: 2})
	require.NoError(t, err)
	route, _ := e.Doorbells()
	require.Equal(t, mode&controller.ModeDoorbell != 0, route == engine.DoorbellBridge, "doorbells by %v", route)
	d, err := namespace.Open(e, 1, namespace.Options{})
	require.NoError(t, err)

	want := pattern(n, byte(mode))
	out, err := d.Alloc(n)
	require.NoError(t, err)
	in, err := d.Alloc(n)
	require.NoError(t, err)
	copy(out.Bytes(), want)
	clear(in.Bytes()[:n])
	at := blockdev.Bytes(int(mode) * n)
	require.NoError(t, d.Write(at, true, out.Slice(0, n)))
	require.NoError(t, d.Read(at, in.Slice(0, n)))
	require.True(t, bytes.Equal(want, in.Bytes()[:n]), "what was read is not what was written")

	// Queues and data are in the BAR exactly if the mode puts them there.
	used := stretches(bar)
	times := 0
	for _, b := range used {
		times += bytes.Count(b, want)
	}
	if mode&controller.ModeData != 0 {
		require.Equal(t, 2, times, "the buffer written from and the one read into are both in the BAR")
	} else {
		require.Zero(t, times, "data in the BAR that should be in host memory")
	}
	var sqes, cqes int
	for _, b := range used {
		s, c := queueEntries(b)
		sqes, cqes = sqes+s, cqes+c
	}
	require.Equal(t, mode&controller.ModeSQ != 0, sqes > 0, "%d submission entries in the BAR", sqes)
	require.Equal(t, mode&controller.ModeCQ != 0, cqes > 0, "%d completion entries in the BAR", cqes)

	in.Release()
	out.Release()
	require.NoError(t, d.Close())
	require.NoError(t, e.Close())
}

// stretches are the parts of b, in whole pages, that hold more than zeroes. An emulated CPU takes seconds to look for anything in all of it.
func stretches(b []byte) (out [][]byte) {
	var zero [4096]byte
	begin := -1
	for off := 0; off <= len(b); off += len(zero) {
		used := off < len(b) && !bytes.Equal(b[off:off+len(zero)], zero[:])
		if used && begin < 0 {
			begin = off
		} else if !used && begin >= 0 {
			out, begin = append(out, b[begin:off]), -1
		}
	}
	return out
}

// TestStretches: what is not zero is all there, what is zero is not.
func TestStretches(t *testing.T) {
	b := make([]byte, 6*4096)
	require.Empty(t, stretches(b))
	b[4095], b[4096], b[len(b)-1] = 1, 2, 3
	got := stretches(b)
	require.Len(t, got, 2)
	require.Equal(t, [2]int{2 * 4096, 4096}, [2]int{len(got[0]), len(got[1])})
	require.Equal(t, [3]byte{1, 2, 3}, [3]byte{got[0][4095], got[0][4096], got[1][4095]})
}

// queueEntries counts what looks like this test's submission and completion entries: reads and writes of namespace 1 with
// both PRPs above 4 GiB or the second 0; completions by a queue of ours with phase 1 and no error, where the controller
// alone wrote.
func queueEntries(bar []byte) (sqes, cqes int) {
	for off := 0; off+64 <= len(bar); off += 64 {
		e := bar[off : off+64]
		if bytes.Count(e, []byte{0}) == 64 {
			continue
		}
		op, nsid := e[0], binary.LittleEndian.Uint32(e[4:])
		prp1 := binary.LittleEndian.Uint64(e[24:])
		if (op == 1 || op == 2) && e[1] == 0 && nsid == 1 && prp1>>32 >= 1 && prp1>>48 == 0 && binary.LittleEndian.Uint64(e[8:]) == 0 {
			sqes++
			continue
		}
		for c := 0; c < 64; c += 16 {
			sqid, status := binary.LittleEndian.Uint16(e[c+10:]), binary.LittleEndian.Uint16(e[c+14:])
			head := binary.LittleEndian.Uint16(e[c+8:])
			if sqid >= 1 && sqid <= 2 && status == 1 && head > 0 && head < 128 && binary.LittleEndian.Uint64(e[c:]) == 0 {
				cqes++
			}
		}
	}
	return sqes, cqes
}

// TestAutoMemoryMode: a mount without a memory mode puts completions and data into the BAR, because real I/O works there, and commands, which the CPU writes, not.
func TestAutoMemoryMode(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, ivshmem)
		bound(t, nvme0)
		dir := mount(t, nvme0, "--vram", ivshmem)
		var stat struct {
			Runtime struct {
				Mode    int    `json:"memory_mode"`
				Bells   string `json:"doorbells"`
				Refused []string
			}
		}
		lanefsJSON(t, &stat, "stat", "--json", dir)
		require.Empty(t, stat.Runtime.Refused)
		require.Equal(t, 10, stat.Runtime.Mode)
		require.Equal(t, "iomem", stat.Runtime.Bells)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), pattern(1<<20, 1), 0o600))
		lanefs(t, "umount", dir)
	})
	dev = disk(t, nvme0)
	fsck(t, dev)
	kernelMount(t, dev, func(dir string) {
		got, err := os.ReadFile(filepath.Join(dir, "file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(pattern(1<<20, 1), got), "the kernel reads something else")
	})
}

// The same through the whole stack: a mount with everything in the BAR.
func TestMountInVRAM(t *testing.T) {
	bound(t, ivshmem)
	roundTrip(t, nvme0, nil, "--memory-mode", "11", "--vram", ivshmem)
}

// TestUnorderedMode: PCI Express orders a command's data and its completion only where they are in the same memory. Who asks for a mode in which they are not is told, and
// gets the right bytes.
func TestUnorderedMode(t *testing.T) {
	mkfs(t, disk(t, nvme0))
	bound(t, ivshmem)
	bound(t, nvme0)
	const warning = "completions and data are in different memories"
	want := pattern(4<<20, 5)
	source, copied := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "copied")
	require.NoError(t, os.WriteFile(source, want, 0o600))
	for _, mode := range []string{"3", "8", "11"} {
		dir, log := mountLogged(t, nvme0, "--memory-mode", mode, "--vram", ivshmem)
		said, err := os.ReadFile(log)
		require.NoError(t, err)
		require.Equal(t, mode != "11", strings.Contains(string(said), warning), "mode %s: %s", mode, said)
		require.Equal(t, mode, strconv.Itoa(stat(t, dir).Runtime.Mode))
		require.NoError(t, dd(source, filepath.Join(dir, "file"), "bs=64k", "oflag=direct"))
		require.NoError(t, dd(filepath.Join(dir, "file"), copied, "bs=64k", "iflag=direct"))
		got, err := os.ReadFile(copied)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "mode %s", mode)
		lanefs(t, "umount", dir)
	}
	for _, mode := range []string{"3", "11"} {
		said := lanefs(t, "bench", "--memory-mode", mode, "--vram", ivshmem, "--time", "1s", nvme0)
		require.Equal(t, mode != "11", strings.Contains(said, warning), "mode %s: %s", mode, said)
	}
}
