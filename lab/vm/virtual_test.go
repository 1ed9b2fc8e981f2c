package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The first virtual function of several, by its address and by the identifier of its controller.
const (
	virtual   = "0000:00:0a.1"
	secondary = 1
)

// Virtualization Management (Base §5.28).
const (
	virtualizationManagement = 0x1c

	actPrimary = 1 // keep this many of the flexible resources, from the next reset on
	actOffline = 7
	actAssign  = 8
	actOnline  = 9

	queues     = 0 // resource types
	interrupts = 1
)

// adminCommand sends an admin command without data through the kernel's driver (struct nvme_passthru_cmd).
func adminCommand(t testing.TB, addr string, opcode uint8, cdw10, cdw11 uint32) {
	t.Helper()
	nodes, _ := filepath.Glob("/sys/bus/pci/devices/" + addr + "/nvme/nvme*")
	require.Len(t, nodes, 1)
	f, err := os.Open("/dev/" + filepath.Base(nodes[0]))
	require.NoError(t, err)
	defer f.Close()
	c := struct {
		opcode, flags                uint8
		_                            uint16
		nsid, cdw2, cdw3             uint32
		metadata, addr               uint64
		metadataLen, dataLen         uint32
		cdw                          [6]uint32 // 10 to 15
		timeoutMilliseconds, result_ uint32
	}{opcode: opcode, cdw: [6]uint32{cdw10, cdw11}}
	const nvmeIoctlAdminCmd = 0xc0484e41
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), nvmeIoctlAdminCmd, uintptr(unsafe.Pointer(&c)))
	require.Zero(t, errno)
	require.Zero(t, status, "opcode %#x, CDW10 %#x: status %#x", opcode, cdw10, status)
}

func manage(t testing.TB, act, resource, controller, n uint32) {
	t.Helper()
	adminCommand(t, several, virtualizationManagement, act|resource<<8|controller<<16, n)
}

func writeSys(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile("/sys/bus/pci/devices/"+path, []byte(text), 0))
}

// virtualFunction switches a virtual function on, without queues, and has no driver of the kernel's take it. It ends with the test.
func virtualFunction(t testing.TB) {
	t.Helper()
	disk(t, several)
	// The physical function gives up its flexible resources, which takes a reset.
	manage(t, actPrimary, queues, 0, 0)
	manage(t, actPrimary, interrupts, 0, 0)
	writeSys(t, several+"/reset", "1")
	writeSys(t, several+"/sriov_drivers_autoprobe", "0")
	writeSys(t, several+"/sriov_numvfs", "1")
	t.Cleanup(func() {
		writeSys(t, several+"/sriov_numvfs", "0")
		writeSys(t, several+"/sriov_drivers_autoprobe", "1")
	})
	_, err := os.Stat("/sys/bus/pci/devices/" + virtual)
	require.NoError(t, err, "%s", kernelLog())
}

// bringOnline gives the virtual function's controller three I/O queue pairs, which it loses when it goes offline, and brings it online.
func bringOnline(t testing.TB) {
	t.Helper()
	manage(t, actAssign, queues, secondary, 4)
	manage(t, actAssign, interrupts, secondary, 2)
	manage(t, actOnline, 0, secondary, 0)
}

// TestVirtualFunction: a virtual function that has no queues yet is refused with the reason; with queues, and online, it is a controller like
// any other, but for a namespace that the kernel has through the physical one. Its end and its controller's are those of a device that is pulled out.
func TestVirtualFunction(t *testing.T) {
	mkfs(t, disk(t, several))
	virtualFunction(t)
	require.Contains(t, lanefs(t, "bind", virtual), "it is a virtual function of "+several)
	require.Contains(t, refused(t, "bind", several), "has virtual functions ("+virtual+")")
	for _, d := range doctor(t).Drives {
		switch d.Address {
		case virtual:
			require.Equal(t, several, d.Physical)
			require.True(t, d.Ready)
		case several:
			require.Equal(t, []string{virtual}, d.Virtual)
			require.False(t, d.Bindable)
		}
	}
	offline := virtual + " is a virtual function of " + several + ", whose controller must have given it queues and interrupts and brought it online"
	require.Contains(t, refused(t, "identify", virtual), offline)
	require.Contains(t, refused(t, "mount", virtual, t.TempDir()), offline)

	bringOnline(t)
	require.Regexp(t, `virtual function of +`+several, lanefs(t, "identify", virtual))
	kernelMount(t, disk(t, several), func(string) {
		require.Contains(t, refused(t, "mount", virtual, t.TempDir()), "is in use: the kernel's driver has it through another controller")
	})
	dir := mount(t, virtual)
	want := pattern(300<<10, 6)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), want, 0o600))
	lanefs(t, "umount", dir)
	dev := disk(t, several)
	fsck(t, dev)
	kernelMount(t, dev, func(dir string) {
		got, err := os.ReadFile(filepath.Join(dir, "file"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	})

	for _, end := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"offline", func(t *testing.T) { manage(t, actOffline, 0, secondary, 0) }},
		{"gone", func(t *testing.T) { writeSys(t, several+"/sriov_numvfs", "0") }},
	} {
		t.Run(end.name, func(t *testing.T) {
			dir, log := mountLogged(t, virtual)
			program := busy(dir)
			time.Sleep(time.Second)
			end.do(t)
			time.Sleep(time.Second)
			program.fails(t)
			endsWithoutDevice(t, dir, log)
			if end.name == "offline" {
				bringOnline(t)
			}
		})
	}
	kernelMount(t, disk(t, several), func(string) {}) // the journal is replayed
	fsck(t, disk(t, several))
}
