package vm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/gpu/host"
	"github.com/lanefs/lanefs/gpu/vfio"
	"github.com/lanefs/lanefs/gpu/vfio/pci"
	"github.com/lanefs/lanefs/nvmeq/controller"
	"github.com/lanefs/lanefs/nvmeq/engine"
	"github.com/lanefs/lanefs/nvmeq/pcie"
)

// translated returns how many bytes the function can reach by DMA, from a source other than LaneFS: the IOMMU's page tables as
// its driver shows them, or, where the kernel does not show them, the memory that the kernel has locked for the process (type1
// counts it there).
func translated(t testing.TB, addr, pid string) (bytes int64, witness string) {
	t.Helper()
	onPC(t, "the driver of Arm's IOMMU does not show its page tables, and IOMMUFD's pinned memory is the user's, not a process's")
	const tables = "/sys/kernel/debug/iommu/intel/"
	if _, err := os.Stat(tables); err == nil {
		b, err := os.ReadFile(tables + addr + "/domain_translation_struct")
		require.NoError(t, err)
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "0x") {
				continue
			}
			// The page's number, then an entry of each level down to the page: three for 1 GiB, four for 2 MiB, five for 4 KiB.
			entries := 0
			for f := range strings.FieldsSeq(line) {
				if strings.HasPrefix(f, "0x") {
					entries++
				}
			}
			size := map[int]int64{4: 1 << 30, 5: 2 << 20, 6: 4096}[entries]
			require.NotZero(t, size, "%q", line)
			bytes += size
		}
		return bytes, "page tables"
	}
	return locked(t, pid), "locked memory"
}

// locked is VmLck of a process, 0 once there is no such process.
func locked(t testing.TB, pid string) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/status")
	if os.IsNotExist(err) || errors.Is(err, unix.ESRCH) { // ESRCH: it ended after the file was opened
		return 0
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmLck:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	return 0
}

// The controller can reach a buffer from its allocation to its release, and nothing else; nothing once everything is closed.
func TestMappingsAreBuffers(t *testing.T) {
	bound(t, nvme0)
	f, err := pci.System{}.Function(nvme0)
	require.NoError(t, err)
	ways, _ := vfio.Offered(f)
	require.NotEmpty(t, ways)
	for _, way := range ways {
		t.Run(string(way), func(t *testing.T) {
			reach := func() int64 {
				n, witness := translated(t, nvme0, "self")
				t.Logf("%d bytes in the %s", n, witness)
				return n
			}
			none := reach()
			if _, witness := translated(t, nvme0, "self"); witness == "page tables" {
				require.Zero(t, none, "no process has opened it")
			}
			rt, err := host.Open(host.Options{})
			require.NoError(t, err)
			dev, err := pcie.Open(nvme0, vfio.Options{Backend: way})
			require.NoError(t, err)
			require.Equal(t, none, reach(), "opened, nothing mapped")
			c, err := controller.Open(controller.Config{Runtime: rt, Transport: dev})
			require.NoError(t, err)
			admin := reach()
			require.Greater(t, admin, none, "the admin queue")
			e, err := engine.New(c, engine.Config{Lanes: 2})
			require.NoError(t, err)
			base := reach()
			require.Greater(t, base, admin, "the I/O queues")

			one, err := c.AllocData(4 << 20)
			require.NoError(t, err)
			require.Equal(t, base+4<<20, reach())
			two, err := c.AllocData(64 << 10)
			require.NoError(t, err)
			require.Equal(t, base+4<<20+64<<10, reach())
			require.NoError(t, one.Close())
			require.Equal(t, base+64<<10, reach())
			require.NoError(t, two.Close())
			require.Equal(t, base, reach())
			require.NoError(t, e.Close())
			require.Equal(t, admin, reach())
			require.NoError(t, c.Close())
			require.Equal(t, none, reach())
			require.NoError(t, dev.Close())
			require.Equal(t, none, reach())
			require.NoError(t, rt.Close())
		})
	}
}

// A mount's memory is reachable while the mount lasts, within what it keeps for its next burst; then none of it is.
func TestMappingsOfAMount(t *testing.T) {
	mkfs(t, disk(t, nvme0))
	bound(t, nvme0)
	dir := mount(t, nvme0)
	pids := daemons()
	require.Len(t, pids, 1)
	reach := func() int64 {
		n, witness := translated(t, nvme0, pids[0])
		t.Logf("%d bytes in the %s", n, witness)
		return n
	}
	idle := reach()
	require.NotZero(t, idle)
	done := make(chan error)
	for i := range 6 {
		go func() { done <- writeAndRead(fmt.Sprintf("%s/f%d", dir, i)) }()
	}
	for range 6 {
		require.NoError(t, <-done)
	}
	require.LessOrEqual(t, reach(), idle+64<<20, "blockdev keeps 64 MiB of what is unused")
	lanefs(t, "umount", dir)
	require.Zero(t, reach(), "after the mount")
}

func writeAndRead(path string) error {
	b := pattern(4<<20, 7)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	if n, err := f.ReadAt(b, 0); err != nil {
		return fmt.Errorf("%d bytes: %w", n, err)
	}
	return nil
}
