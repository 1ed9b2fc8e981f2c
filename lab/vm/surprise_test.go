package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
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

// slot returns where Slot Control of a root port is in configuration space, and its value.
func slot(t testing.TB, port string) (at uint8, control uint16) {
	t.Helper()
	config, err := os.ReadFile("/sys/bus/pci/devices/" + port + "/config")
	require.NoError(t, err)
	at = config[0x34]
	for config[at] != capabilityExpress {
		at = config[at+1]
		require.NotZero(t, at, "%s has no PCI Express capability", port)
	}
	at += slotControl
	return at, binary.LittleEndian.Uint16(config[at:])
}

// slotOff waits until the kernel has switched an empty slot off. After a surprise removal it takes the function away first, then the power,
// and the indicator a second later; QEMU ejects what is in the slot at that moment, a controller plugged in meanwhile too.
func slotOff(t testing.TB, port string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, control := slot(t, port)
		return control&slotPowerOff != 0 && control&slotIndicatorOff == slotIndicatorOff
	}, 3*time.Minute, 100*time.Millisecond, "the kernel does not switch the slot of %s off: %s", port, kernelLog())
}

// pull removes the device from a root port's slot at once: QEMU does so when the slot's power is switched off. The kernel is
// notified afterwards, with the power on again, as after a surprise removal.
//
// The machine is stopped meanwhile: QEMU 7.2 frees a controller's queues although another CPU may be inside a write to one of
// their doorbells, continues that write, and crashes. For the driver it makes no difference: commands that it has posted and
// doorbells that it rings have no effect. A stopped guest cannot write, so QEMU writes, to the ports through which a PC reaches
// configuration space (0xcf8, 0xcfc).
func pull(t testing.TB, port string) {
	t.Helper()
	onPC(t, "the slot is switched off by a PC's I/O ports")
	at, control := slot(t, port)
	var domain, bus, device, function uint32
	_, err := fmt.Sscanf(port, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	require.NoError(t, err)
	register := 1<<31 | bus<<16 | device<<11 | function<<8 | uint32(at)&^3
	data := 0xcfc + uint32(at)&3
	qemu(t).whileStopped(t,
		fmt.Sprintf("o/w 0xcf8 %#x", register),
		fmt.Sprintf("o/h %#x %#x", data, control&^slotInterrupt|slotIndicatorOff|slotPowerOff),
		fmt.Sprintf("o/h %#x %#x", data, control))
}

// The controller is removed without notice while a program writes, and registers read as all ones. The daemon gives up,
// programs get errors, the mount can be unmounted, and the kernel can use the slot again.
func TestSurpriseRemoval(t *testing.T) { surpriseRemoval(t, func(string) {}) }

// The same while queues and data are in another function's memory. That function is whole afterwards: with the drive back in the slot, the
// next mount has its queues and data there again, recovers the journal, and has what fsync promised.
func TestSurpriseRemovalPeer(t *testing.T) {
	bound(t, ivshmem)
	inBAR := []string{"--memory-mode", "11", "--vram", ivshmem}
	t.Run("removed", func(t *testing.T) {
		surpriseRemoval(t, func(dir string) {
			require.Contains(t, lanefs(t, "stat", dir), "memory mode 11")
		}, inBAR...)
	})
	if t.Failed() {
		return
	}
	addr := plug(t, medium(t, 7), nil)
	t.Run("back", func(t *testing.T) {
		bound(t, addr)
		dir := mount(t, addr, inBAR...)
		got := make([]byte, busyPiece)
		f, err := os.Open(filepath.Join(dir, "busy"))
		require.NoError(t, err)
		defer f.Close()
		_, err = f.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(busyPattern(), got))
		require.NoError(t, f.Close())
		lanefs(t, "umount", dir)
	})
	fsck(t, disk(t, addr))
}

func surpriseRemoval(t *testing.T, look func(dir string), options ...string) {
	addr := plug(t, medium(t, 7), nil)
	mkfs(t, disk(t, addr))
	lanefs(t, "bind", addr)
	dir, log := mountLogged(t, addr, options...)
	look(dir)
	program := busy(dir)
	time.Sleep(time.Second)
	pull(t, port1)
	qemu(t).await(t, "DEVICE_DELETED", "plugged")
	program.fails(t)
	// The daemon lets go of the function by itself: it runs on until the unmount.
	require.Eventually(t, func() bool { _, err := os.Stat("/sys/bus/pci/devices/" + addr); return err != nil },
		3*time.Minute, 100*time.Millisecond, "the kernel still waits for the function: %s", kernelLog())
	require.NotEmpty(t, daemons())
	endsWithoutDevice(t, dir, log)
}

// TestRawRemoved: a function whose namespace is shown as a file goes away, without notice and by an unplug, while programs read and write it, round the
// page cache and through it. All of them get errors, also later ones; the file can be unmounted, and its daemon ends.
func TestRawRemoved(t *testing.T) {
	for _, end := range []struct {
		name string
		do   func(t *testing.T)
	}{
		{"without notice", func(t *testing.T) {
			pull(t, port1)
			qemu(t).await(t, "DEVICE_DELETED", "plugged")
		}},
		{"unplugged", func(t *testing.T) { unplug(t) }},
	} {
		t.Run(end.name, func(t *testing.T) {
			addr := plug(t, medium(t, 7), nil)
			disk(t, addr)
			lanefs(t, "bind", addr)
			file, log := filepath.Join(t.TempDir(), "raw"), filepath.Join(t.TempDir(), "log")
			lanefs(t, "raw", "--gpu", "host", "-o", "log="+log, addr, file)
			t.Cleanup(func() { unix.Unmount(file, unix.MNT_DETACH) })
			users := map[string]*rawUser{
				"writer": useRaw(t, file, unix.O_DIRECT, (*os.File).WriteAt),
				"buffered writer": useRaw(t, file, 0, func(f *os.File, b []byte, at int64) (int, error) {
					n, err := f.WriteAt(b, at)
					return n, errors.Join(err, f.Sync())
				}),
				"reader": useRaw(t, file, unix.O_DIRECT, (*os.File).ReadAt),
			}
			for name, u := range users {
				require.Eventually(t, func() bool { return u.done.Load() >= 8 }, commandTimeout, 10*time.Millisecond, "the %s does not begin", name)
			}
			end.do(t)
			gone := time.Now()
			for name, u := range users {
				select {
				case err := <-u.failed:
					t.Logf("the %s after %v: %v", name, time.Since(gone).Round(time.Millisecond), err)
					require.ErrorIs(t, err, unix.EIO, "the %s", name)
				case <-time.After(3 * time.Minute):
					t.Fatalf("the %s waits for a device that is gone; the daemon's log:\n%s", name, logged(t, log))
				}
			}
			require.Error(t, dd("/dev/zero", file, "bs=4096", "count=1"), "a later program")
			endsWithoutDevice(t, file, log)
		})
	}
}

// rawUser does the same to a file that a device is shown as, again and again, until it fails.
type rawUser struct {
	done   atomic.Int64
	failed chan error
}

func useRaw(t *testing.T, file string, flags int, do func(f *os.File, b []byte, at int64) (int, error)) *rawUser {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR|flags, 0)
	require.NoError(t, err)
	u := &rawUser{failed: make(chan error, 1)}
	go func() {
		b := pattern(64<<10, 4)
		defer f.Close()
		for i := int64(0); ; i = (i + 1) % 64 {
			if _, err := do(f, b, i*int64(len(b))); err != nil {
				u.failed <- err
				return
			}
			u.done.Add(1)
		}
	}()
	return u
}

// endsWithoutDevice unmounts after the device was removed: lanefs reports errors, and the mount and its daemon end nevertheless.
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
