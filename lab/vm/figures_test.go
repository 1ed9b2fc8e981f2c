package vm

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBlockDeviceFigures measures lanes beside pread with O_DIRECT (blockdev/namespace's BenchmarkBlockDevice) on block devices of the kernel
// that answer at once, and after 30 µs. They are of an emulated machine: the parts count, not the figures. `make lab-bench` gives it the benchmark.
func TestBlockDeviceFigures(t *testing.T) {
	if _, err := exec.LookPath("namespace.test"); err != nil {
		t.Skip("make lab-bench runs it")
	}
	load := func(t *testing.T, module string, options ...string) {
		t.Helper()
		f, err := os.Open("/lib/modules/later")
		require.NoError(t, err)
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			name := strings.TrimSuffix(lines.Text(), ".ko")
			if _, err := os.Stat("/sys/module/" + strings.ReplaceAll(name, "-", "_")); err == nil {
				continue
			}
			args := []string{"/lib/modules/" + lines.Text()}
			switch name {
			case module:
				args = append(args, options...)
			case "null_blk", "scsi_debug", "dm-log-writes":
				continue // the others
			}
			must(t, "insmod", args...)
		}
		t.Cleanup(func() { must(t, "rmmod", module) })
	}
	result := regexp.MustCompile(`^BenchmarkBlockDevice/([^ \t-]+).*?([0-9.]+) %-of-pread.*?([0-9.]+) lanes-MB/s.*?([0-9.]+) pread-MB/s`)
	for _, c := range []struct{ name, module, options, pattern string }{
		{"null_blk, 30 µs", "null_blk", "nr_devices=1 gb=1 submit_queues=2 irqmode=2 completion_nsec=30000", "/dev/nullb0"},
		{"null_blk, at once", "null_blk", "nr_devices=1 gb=1 submit_queues=2 irqmode=0", "/dev/nullb0"},
		{"scsi_debug, 30 µs", "scsi_debug", "dev_size_mb=256 ndelay=30000", "/dev/sd?"},
		{"scsi_debug, at once", "scsi_debug", "dev_size_mb=256 delay=0", "/dev/sd?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			load(t, c.module, strings.Fields(c.options)...)
			var found []string
			require.Eventually(t, func() bool { found, _ = filepath.Glob(c.pattern); return len(found) == 1 }, time.Minute, 50*time.Millisecond, c.pattern)
			t.Setenv("LANEFS_BENCH_DEVICE", found[0])
			out := must(t, "namespace.test", "-test.run", "xxx", "-test.bench", "BlockDevice", "-test.benchtime", "3s")
			n := 0
			for line := range strings.Lines(out) {
				if m := result.FindStringSubmatch(line); m != nil {
					n++
					t.Logf("%s: %s: lanes %s MB/s, pread %s MB/s, %s %%", c.name, m[1], m[3], m[4], m[2])
				}
			}
			require.NotZero(t, n, "%s", out)
		})
	}
}
