package vm

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded says how many writes and discards QEMU has completed. Its figures leave out the flushes of Flush commands, which the log has.
func recorded(t testing.TB) (n int) {
	t.Helper()
	answer, err := qemu(t).execute("query-blockstats", map[string]any{})
	require.NoError(t, err)
	for _, d := range answer.([]any) {
		if q, _ := d.(map[string]any)["qdev"].(string); !strings.Contains(q, "plugged") {
			continue
		}
		stats := d.(map[string]any)["stats"].(map[string]any)
		for _, what := range []string{"wr_operations", "unmap_operations"} {
			n += int(stats[what].(float64))
		}
		return n
	}
	t.Fatalf("QEMU has no figures of the controller: %v", answer)
	return 0
}

// TestRecordedWrites: QEMU records what LaneFS writes to a function. The medium as it is when the power is cut after a write, any of them, is a volume
// that the kernel recovers, in which e2fsck finds no error, and which has what fsync had promised by then. (Cuts that lose some of the writes
// before it are lab/powercut's: QEMU's log does not say which writes had FUA.)
func TestRecordedWrites(t *testing.T) {
	if !full() {
		t.Skip("LANEFS_LAB_FULL=1 runs it: some minutes")
	}
	base := filepath.Join(t.TempDir(), "base")
	t.Run("prepare", func(t *testing.T) {
		dev := disk(t, plug(t, medium(t, 7), nil))
		cutFormat(t, dev)
		require.NoError(t, dd(dev, base, "bs=1M", "count=64"))
	})
	promises := make([]int, cutFiles) // writes completed when the fsync of a file returned
	total := 0
	t.Run("record", func(t *testing.T) {
		log := medium(t, 8)
		addr := plug(t, medium(t, 7, map[string]any{"driver": "blklogwrites", "log": log, "log-sector-size": logSector, "log-super-update-interval": 1}), nil)
		bound(t, addr)
		dir := mount(t, addr)
		cutWork(t, dir, func(i int) { promises[i] = recorded(t) })
		lanefs(t, "umount", dir)
		total = recorded(t)
	})
	if t.Failed() {
		return
	}
	log := readLog(t, disk(t, plug(t, medium(t, 8), nil)))
	cut := filepath.Join(filepath.Dir(base), "cut")
	check := func(writes int) error {
		return cutCheck(t, base, cut, func(i int) bool { return promises[i] <= writes })
	}
	writes, flushes, controls := 0, 0, 0
	cutReplay(t, log, base, func(e logEntry, wrote bool) {
		if !wrote {
			flushes++
			return
		}
		writes++
		require.NoError(t, check(writes), "the power is cut after write %d of %d", writes, total)
		if writes == total/2 {
			controls++
			require.Error(t, check(total), "the check does not see that half of the writes are missing")
		}
	})
	require.Equal(t, total, writes, "QEMU's figures and its log are not of the same writes")
	require.Greater(t, flushes, cutFiles, "each fsync flushes")
	require.NotZero(t, controls)
	t.Logf("%d writes, %d flushes", writes, flushes)
}
