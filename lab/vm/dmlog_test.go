package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoggedWrites: the kernel's dm-log-writes records what LaneFS writes to a block device. It logs a write when the flush after it has ended, or the
// write itself if it had FUA: so the medium after any entry is one that a power cut may leave, and what fsync had promised is there from its mark on.
func TestLoggedWrites(t *testing.T) {
	if !full() {
		t.Skip("LANEFS_LAB_FULL=1 runs it: some minutes")
	}
	if _, err := exec.LookPath("dmsetup"); err != nil {
		t.Skip("SKIP: no dmsetup in the guest")
	}
	if _, err := os.Stat("/lib/modules/dm-log-writes.ko"); err != nil {
		t.Skip("SKIP: this kernel has no module dm-log-writes; the stock kernel has")
	}
	must(t, "insmod", "/lib/modules/dm-log-writes.ko")
	defer must(t, "rmmod", "dm_log_writes")
	tmp := t.TempDir()
	loop := func(name string, size int64) string {
		file := filepath.Join(tmp, name)
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.NoError(t, os.Truncate(file, size))
		dev := strings.TrimSpace(must(t, "losetup", "-f"))
		must(t, "losetup", dev, file)
		t.Cleanup(func() { must(t, "losetup", "-d", dev) })
		return dev
	}
	data, log := loop("data", cutSize), loop("log", 4*cutSize)
	base, cut := filepath.Join(tmp, "base"), filepath.Join(tmp, "cut")
	cutFormat(t, data)
	require.NoError(t, dd(data, base, "bs=1M"))

	must(t, "dmsetup", "create", "--noudevsync", "lablog", "--table", fmt.Sprintf("0 %d log-writes %s %s", cutSize/logSector, data, log))
	removed := false
	defer func() {
		if !removed {
			run("dmsetup", "remove", "--noudevsync", "lablog")
		}
	}()
	dir := mount(t, "/dev/dm-"+strings.TrimSpace(must(t, "dmsetup", "info", "-c", "--noheadings", "-o", "minor", "lablog"))) // there is no udev for its name
	require.Contains(t, lanefs(t, "stat", dir), "O_DIRECT by io_uring")
	cutWork(t, dir, func(i int) { must(t, "dmsetup", "message", "lablog", "0", "mark", fmt.Sprint("f", i)) })
	lanefs(t, "umount", dir)
	must(t, "dmsetup", "remove", "--noudevsync", "lablog") // which writes the log to its end
	removed = true

	promised := map[string]bool{}
	check := func() error { return cutCheck(t, base, cut, func(i int) bool { return promised[fmt.Sprint("f", i)] }) }
	all := readLog(t, log)
	writes, durable := 0, 0
	cutReplay(t, all, base, func(e logEntry, wrote bool) {
		if e.flags&logMark != 0 {
			promised[string(e.data)] = true
		}
		if e.flags&logFUA != 0 {
			durable++
		}
		if wrote {
			writes++
		}
		if wrote || e.flags&logMark != 0 {
			require.NoError(t, check(), "the power is cut after write %d of %d entries", writes, len(all))
		}
		if len(promised) == cutFiles/2 && wrote && !promised["control"] {
			promised["control"] = true
			promised[fmt.Sprint("f", cutFiles-1)] = true
			require.Error(t, check(), "the check does not see that a file is missing")
			delete(promised, fmt.Sprint("f", cutFiles-1))
		}
	})
	for i := range cutFiles {
		require.True(t, promised[fmt.Sprint("f", i)], "the mark of file %d", i)
	}
	require.GreaterOrEqual(t, durable, cutFiles, "each fsync ends with a block that has FUA")
	t.Logf("%d writes, %d with FUA", writes, durable)
}
