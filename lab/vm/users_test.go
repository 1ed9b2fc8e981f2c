package vm

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBindNamesUsers makes users of a namespace with the usual tools, and binds: lanefs refuses and names the users, as long as
// they are there.
func TestBindNamesUsers(t *testing.T) {
	dev := disk(t, nvme0)
	name := strings.TrimPrefix(dev, "/dev/")
	refuses := func(t *testing.T, want string) {
		t.Helper()
		require.Regexp(t, regexp.QuoteMeta(name+" ")+want, refused(t, "bind", nvme0))
		require.Equal(t, "nvme", driver(nvme0), "the function stayed where it was")
	}
	tool := func(t *testing.T, name string) {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("SKIP: no %s in the guest", name)
		}
	}

	t.Run("RAID", func(t *testing.T) {
		tool(t, "mdadm")
		must(t, "mdadm", "--create", "/dev/md7", "--run", "--force", "--metadata=1.2", "--level=1", "--raid-devices=2", dev, "missing")
		t.Cleanup(func() {
			must(t, "mdadm", "--stop", "/dev/md7")
			must(t, "mdadm", "--zero-superblock", dev)
		})
		refuses(t, "is part of the RAID array md7")
		mkfs(t, "/dev/md7")
		kernelMount(t, "/dev/md7", func(string) { refuses(t, "is part of the RAID array md7") })
	})
	t.Run("LVM", func(t *testing.T) {
		tool(t, "lvm")
		lvm := func(args ...string) {
			t.Helper()
			// There is no udev in the guest.
			must(t, "lvm", append(args[:1:1], append([]string{"--config", `activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { obtain_device_list_from_udev=0 external_device_info_source="none" use_devicesfile=0 } backup { backup=0 archive=0 } global { locking_dir="/tmp/lvmlock" use_lvmpolld=0 event_activation=0 }`}, args[1:]...)...)...)
		}
		lvm("pvcreate", "-ff", "-y", dev)
		lvm("vgcreate", "lab-group", dev)
		lvm("lvcreate", "-y", "-W", "n", "-n", "volume", "-L", "64M", "lab-group")
		t.Cleanup(func() {
			lvm("vgchange", "-an", "lab-group")
			lvm("vgremove", "-f", "lab-group")
			lvm("pvremove", "-y", dev)
		})
		refuses(t, `is part of the LVM volume group "lab-group", in the volume "volume" \(dm-\d+\)`)
	})
	t.Run("another mount namespace", func(t *testing.T) {
		mkfs(t, dev)
		dir := t.TempDir()
		cmd := exec.Command("unshare", "-m", "sh", "-c", fmt.Sprintf("mount -t ext4 %s %s && echo mounted; read line; umount %s", dev, dir, dir))
		end, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line := make([]byte, len("mounted\n"))
		_, err = io.ReadFull(out, line)
		if err == nil {
			mounts, _ := os.ReadFile("/proc/self/mounts")
			if !strings.Contains(string(mounts), dir) { // busybox's unshare makes the mounts its own
				refuses(t, "is mounted at "+dir)
			} else {
				t.Errorf("the mount is not in a namespace of its own: %s", mounts)
			}
		}
		end.Close()
		waited := cmd.Wait()
		require.NoError(t, err)
		t.Log(waited)
	})
	t.Run("open controller", func(t *testing.T) {
		nodes, _ := filepath.Glob("/sys/bus/pci/devices/" + nvme0 + "/nvme/nvme*")
		require.Len(t, nodes, 1)
		for _, node := range []string{filepath.Base(nodes[0]), strings.Replace(name, "nvme", "ng", 1)} {
			if _, err := os.Stat("/dev/" + node); err != nil {
				t.Logf("no %s on this kernel", node)
				continue
			}
			sleeper := exec.Command("sh", "-c", "exec 5</dev/"+node+"; exec sleep 1000")
			require.NoError(t, sleeper.Start())
			require.Eventually(t, func() bool {
				to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/5", sleeper.Process.Pid))
				comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", sleeper.Process.Pid))
				return to == "/dev/"+node && string(comm) == "sleep\n"
			}, commandTimeout, 50*time.Millisecond)
			out := refused(t, "bind", nvme0)
			sleeper.Process.Kill()
			sleeper.Wait()
			require.Contains(t, out, fmt.Sprintf("%s is open in process %d (sleep)", node, sleeper.Process.Pid))
			require.Equal(t, "nvme", driver(nvme0))
		}
	})
	// Without users the bind succeeds.
	bound(t, nvme0)
}
