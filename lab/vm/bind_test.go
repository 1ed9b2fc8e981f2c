package vm

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A function in use keeps its driver, and the error names its users.
func TestBindRefuses(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev)
	name := strings.TrimPrefix(dev, "/dev/")
	still := func(t *testing.T) {
		t.Helper()
		require.Equal(t, "nvme", driver(nvme0), "the function stayed where it was")
	}

	t.Run("mounted", func(t *testing.T) {
		kernelMount(t, dev, func(dir string) {
			require.Contains(t, refused(t, "bind", nvme0), name+" is mounted at "+dir)
			still(t)
		})
	})
	t.Run("swap", func(t *testing.T) {
		must(t, "mkswap", dev)
		must(t, "swapon", dev)
		require.Contains(t, refused(t, "bind", nvme0), name+" is swap space")
		still(t)
		must(t, "swapoff", dev)
	})
	t.Run("device mapper", func(t *testing.T) {
		if _, err := exec.LookPath("dmsetup"); err != nil {
			t.Skip("SKIP: no dmsetup in the guest")
		}
		must(t, "dmsetup", "create", "--noudevsync", "labmap", "--table", "0 2048 linear "+dev+" 0")
		out := refused(t, "bind", nvme0)
		must(t, "dmsetup", "remove", "--noudevsync", "labmap")
		require.Contains(t, out, `is part of the device-mapper device "labmap" (dm-`)
		still(t)
	})
	t.Run("loop", func(t *testing.T) {
		loop := strings.TrimSpace(must(t, "losetup", "-f"))
		must(t, "losetup", loop, dev)
		out := refused(t, "bind", nvme0)
		must(t, "losetup", "-d", loop)
		require.Contains(t, out, name+" is behind "+strings.TrimPrefix(loop, "/dev/"))
		still(t)
	})
	t.Run("open", func(t *testing.T) {
		f, err := os.Open(dev)
		require.NoError(t, err)
		out := refused(t, "bind", nvme0)
		require.NoError(t, f.Close())
		require.Contains(t, out, name+" is open in process ")
		require.Contains(t, out, "(lab.test)")
		still(t)
	})
	t.Run("group", func(t *testing.T) {
		out := refused(t, "bind", shared0)
		require.Contains(t, out, shared1+", of the same IOMMU group ")
		require.Contains(t, out, "in the hands of the driver nvme")
		require.Equal(t, "nvme", driver(shared0))
	})
	t.Run("claimed", func(t *testing.T) {
		// A mount that no list shows: it is detached, and its file system is still in use.
		dir := t.TempDir()
		mkfs(t, dev)
		require.NoError(t, unix.Mount(dev, dir, "ext4", 0, ""))
		f, err := os.Create(dir + "/file")
		require.NoError(t, err)
		require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH))
		out := refused(t, "bind", nvme0)
		require.NoError(t, f.Close())
		require.Contains(t, out, name+" is in use: it cannot be opened exclusively")
		still(t)
	})
	require.Contains(t, refused(t, "bind", "0000:00:07.0"), "is a bridge")
	require.Contains(t, refused(t, "bind", "nonsense"), "is not a PCI address")
	require.Contains(t, refused(t, "bind", "0000:00:1f.7"), "there is no PCI function")
}

// TestBindSignalled: a signal that comes while the function has no driver does not leave it so.
func TestBindSignalled(t *testing.T) {
	disk(t, nvme0) // the kernel has it
	for _, c := range []struct{ command, driver string }{{"bind", "vfio-pci"}, {"unbind", "nvme"}} {
		caught := false
		cmd := exec.Command("lanefs", c.command, nvme0)
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for over := false; !over && !caught; {
			select {
			case err := <-ended:
				require.NoError(t, err)
				over = true
			default:
				if caught = driver(nvme0) == ""; caught {
					require.NoError(t, cmd.Process.Signal(unix.SIGINT))
					require.NoError(t, cmd.Process.Signal(unix.SIGHUP))
					<-ended // by SIGHUP, when it is done
				}
			}
		}
		t.Logf("%s: caught without a driver: %v", c.command, caught)
		require.Equal(t, c.driver, driver(nvme0), c.command)
	}
}

// Binds and unbinds twice; a function with a mount is refused.
func TestBindAndUnbind(t *testing.T) {
	dev := disk(t, nvme0)
	mkfs(t, dev)
	require.Contains(t, lanefs(t, "bind", nvme0), "is bound to vfio-pci, was nvme")
	require.Contains(t, lanefs(t, "bind", nvme0), "already")
	dir := mount(t, nvme0)
	require.Contains(t, refused(t, "unbind", nvme0), "(lanefs)")
	require.Equal(t, "vfio-pci", driver(nvme0))
	second := t.TempDir()
	lanefs(t, "mount", nvme0, second) // the same volume once more, not another daemon
	require.Contains(t, lanefs(t, "umount", second), "the volume stays mounted as")
	require.Contains(t, refused(t, "unbind", nvme0), "(lanefs)")
	lanefs(t, "umount", dir)
	require.Contains(t, lanefs(t, "unbind", nvme0), "the driver nvme has it")
	require.Contains(t, lanefs(t, "unbind", nvme0), "the driver nvme has it")
	require.Equal(t, "nvme", driver(nvme0))
	fsck(t, disk(t, nvme0))
}
