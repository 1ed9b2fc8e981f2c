package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Slot Control of a root port (PCIe 7.5.3.10).
const (
	capabilityExpress = 0x10
	slotControl       = 0x18
	slotInterrupt     = 1 << 5
	slotIndicatorOff  = 3 << 8
	slotPowerOff      = 1 << 10
)

// pull takes what is in a root port's slot out of it, at once: QEMU does so when the slot's power goes. The kernel hears
// of it afterwards, with the power on as it had left it, as from a hand that pulled.
//
// The machine stands still meanwhile: QEMU 7.2 frees a controller's queues although another CPU may be inside a write to
// one of their doorbells, goes on with that write, and dies. To the driver it is the same: commands it has posted and
// doorbells it rings go to nobody. A guest that stands still cannot write, so QEMU does, by the ports through which a PC
// reaches configuration space (0xcf8, 0xcfc).
func pull(t testing.TB, port string) {
	t.Helper()
	config, err := os.ReadFile("/sys/bus/pci/devices/" + port + "/config")
	require.NoError(t, err)
	at := config[0x34]
	for config[at] != capabilityExpress {
		at = config[at+1]
		require.NotZero(t, at, "%s has no PCI Express capability", port)
	}
	at += slotControl
	control := binary.LittleEndian.Uint16(config[at:])
	var domain, bus, device, function uint32
	_, err = fmt.Sscanf(port, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	require.NoError(t, err)
	register := 1<<31 | bus<<16 | device<<11 | function<<8 | uint32(at)&^3
	data := 0xcfc + uint32(at)&3
	qemu(t).whileStopped(t,
		fmt.Sprintf("o/w 0xcf8 %#x", register),
		fmt.Sprintf("o/h %#x %#x", data, control&^slotInterrupt|slotIndicatorOff|slotPowerOff),
		fmt.Sprintf("o/h %#x %#x", data, control))
}

// The controller vanishes while it writes: nobody was asked, no register answers. The daemon gives up, its users get
// errors, its mount can be unmounted, and the kernel has its slot back.
func TestSurpriseRemoval(t *testing.T) {
	addr := plug(t, medium(t, 7), nil)
	mkfs(t, disk(t, addr))
	lanefs(t, "bind", addr)
	dir, log := mountLogged(t, addr)
	stop := busy(dir)
	time.Sleep(time.Second)
	pull(t, "0000:00:07.0")
	qemu(t).await(t, "DEVICE_DELETED", "plugged")
	err := stop()
	require.Error(t, err, "writes went on without a device")
	require.True(t, errors.Is(err, unix.EIO) || errors.Is(err, unix.EROFS), "%v", err)
	endsWithoutDevice(t, dir, log)
	require.Eventually(t, func() bool { _, err := os.Stat("/sys/bus/pci/devices/" + addr); return err != nil },
		3*time.Minute, 100*time.Millisecond, "the kernel still waits for the function: %s", kernelLog())
}

// endsWithoutDevice unmounts where there is no device any more: errors are said, the mount and its daemon go all the same.
func endsWithoutDevice(t testing.TB, dir, log string) {
	t.Helper()
	if out, err := run("lanefs", "umount", dir); err != nil {
		require.NotContains(t, err.Error(), "no end within")
		require.NotContains(t, err.Error(), "mappings left")
		t.Logf("umount: %v%s", err, out)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), dir)
	text := logged(t, log)
	require.NotContains(t, text, "panic")
	require.NotContains(t, text, "goroutine ")
	require.NotContains(t, text, "SIGBUS")
	require.Eventually(t, func() bool { return len(daemons()) == 0 }, 3*time.Minute, 100*time.Millisecond, "the daemon does not end")
}
