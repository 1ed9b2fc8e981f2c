package vm

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSuspend: the machine sleeps under a mount (ACPI S3), in which devices have no power, twice. The drive comes back as after a reset: it is enabled again, and files are read and
// written on. QEMU's controller counts no power cycles, and loses no cache.
func TestSuspend(t *testing.T) {
	if !strings.Contains(flag.Lookup("test.run").Value.String(), "TestSuspend") {
		t.Skip("QEMU's ACPI is not what it was after it: alone, with LANEFS_LAB_RUN='^TestSuspend$' LANEFS_LAB_KERNEL=stock")
	}
	const state = "/sys/power/state"
	if b, err := os.ReadFile(state); err != nil || !strings.Contains(string(b), "mem") {
		t.Skip("this kernel, or the machine, has no suspend to memory")
	}
	if b, err := os.ReadFile("/sys/power/mem_sleep"); err != nil || !strings.Contains(string(b), "deep") {
		t.Skipf("the machine has no ACPI S3: %s", b)
	}
	if _, err := os.Stat("/sys/class/rtc/rtc0/wakealarm"); err != nil {
		t.Skip("there is no clock that wakes the machine")
	}
	dev := disk(t, nvme0)
	mkfs(t, dev)
	want := pattern(1<<20, 9)
	t.Run("lanefs", func(t *testing.T) {
		bound(t, nvme0)
		dir, log := mountLogged(t, nvme0)
		for _, name := range []string{"first", "second"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), want, 0o644))
			unix.Sync()
			require.NoError(t, os.WriteFile("/sys/power/mem_sleep", []byte("deep"), 0))
			require.NoError(t, os.WriteFile("/sys/class/rtc/rtc0/wakealarm", []byte("+10"), 0))
			require.NoError(t, os.WriteFile(state, []byte("mem"), 0)) // returns when the machine is awake
			copied := filepath.Join(t.TempDir(), "copied")
			start := time.Now()
			require.NoError(t, dd(filepath.Join(dir, name), copied, "bs=64k", "iflag=direct"))
			t.Logf("the first file was read %v after the machine woke up", time.Since(start))
			got, err := os.ReadFile(copied)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "%s after a suspend", name)
		}
		require.Contains(t, logged(t, log), "the controller is not enabled any more")
		lanefs(t, "umount", dir)
	})
	dev = disk(t, nvme0)
	kernelMount(t, dev, func(dir string) {
		for _, name := range []string{"first", "second"} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "the kernel reads something else")
		}
	})
	fsck(t, dev)
}
