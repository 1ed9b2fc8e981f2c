package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The log that QEMU's blklogwrites writes is that of the kernel's dm-log-writes: a superblock, then for each write, in units of sectors, an entry
// and the data.
const (
	logMagic   = 0x6a736677736872
	logSector  = 512
	logFlush   = 1 << 0
	logDiscard = 1 << 2
)

type logEntry struct {
	at, n uint64 // sectors
	flags uint64
	data  []byte
}

// readLog reads all entries. Discards have no data.
func readLog(t testing.TB, dev string) (all []logEntry) {
	t.Helper()
	f, err := os.Open(dev)
	require.NoError(t, err)
	defer f.Close()
	sector := make([]byte, logSector)
	next := func() []byte {
		_, err := io.ReadFull(f, sector)
		require.NoError(t, err)
		return sector
	}
	le := binary.LittleEndian
	super := next()
	require.EqualValues(t, logMagic, le.Uint64(super))
	entries := le.Uint64(super[16:])
	require.EqualValues(t, logSector, le.Uint32(super[24:]))
	for range entries {
		b := next()
		e := logEntry{at: le.Uint64(b), n: le.Uint64(b[8:]), flags: le.Uint64(b[16:])}
		if e.flags&logDiscard == 0 {
			e.data = make([]byte, e.n*logSector)
			_, err := io.ReadFull(f, e.data)
			require.NoError(t, err)
		}
		all = append(all, e)
	}
	return all
}

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
	const size, files = 64 << 20, 24
	name := func(i int) string { return fmt.Sprintf("d%d/f%d", i%3, i) }
	content := func(i int) []byte { return pattern(512+i*3001/8*8, byte(i)) }
	gone := func(i, by int) bool { return i%4 == 1 && by >= i+2 } // removed after the fsync of i+2
	base := filepath.Join(t.TempDir(), "base")
	t.Run("prepare", func(t *testing.T) {
		dev := disk(t, plug(t, medium(t, 7), nil))
		must(t, "mkfs.ext4", "-q", "-F", "-O", "metadata_csum_seed,orphan_file", dev, "64M")
		require.NoError(t, dd(dev, base, "bs=1M", "count=64"))
	})
	promises := make([]int, files) // writes completed when the fsync of a file returned
	total := 0
	t.Run("record", func(t *testing.T) {
		log := medium(t, 8)
		addr := plug(t, medium(t, 7, map[string]any{"driver": "blklogwrites", "log": log, "log-sector-size": logSector, "log-super-update-interval": 1}), nil)
		bound(t, addr)
		dir := mount(t, addr)
		for i := range 3 {
			require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("d%d", i)), 0o755))
		}
		for i := range files {
			f, err := os.Create(filepath.Join(dir, name(i)))
			require.NoError(t, err)
			_, err = f.Write(content(i))
			require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
			promises[i] = recorded(t)
			if i >= 2 && gone(i-2, i) {
				require.NoError(t, os.Remove(filepath.Join(dir, name(i-2))))
			}
		}
		lanefs(t, "umount", dir)
		total = recorded(t)
	})
	if t.Failed() {
		return
	}
	log := readLog(t, disk(t, plug(t, medium(t, 8), nil)))

	// check looks at a medium whose power was cut after so many writes.
	cut := filepath.Join(filepath.Dir(base), "cut")
	check := func(work *os.File, writes int) error {
		if err := dd(work.Name(), cut, "bs=1M"); err != nil {
			return err
		}
		dir := t.TempDir()
		loop := strings.TrimSpace(must(t, "losetup", "-f"))
		must(t, "losetup", loop, cut)
		defer must(t, "losetup", "-d", loop)
		if err := unix.Mount(loop, dir, "ext4", 0, ""); err != nil {
			return fmt.Errorf("the kernel does not mount it: %w", err)
		}
		newest := -1 // that there is
		for i := range files {
			if _, err := os.Stat(filepath.Join(dir, name(i))); err == nil {
				newest = i
			}
		}
		var errs []error
		for i := range files {
			got, err := os.ReadFile(filepath.Join(dir, name(i)))
			switch promised := promises[i] <= writes; {
			case err != nil && !gone(i, newest) && (promised || i < newest):
				errs = append(errs, fmt.Errorf("file %d of %d: %w", i, newest, err))
			case err == nil && gone(i, newest-1):
				errs = append(errs, fmt.Errorf("file %d was removed before %d was made", i, newest))
			case err == nil && (promised || i < newest) && !bytes.Equal(got, content(i)), err == nil && !bytes.HasPrefix(content(i), got):
				errs = append(errs, fmt.Errorf("file %d of %d: wrong, %d bytes", i, newest, len(got)))
			}
		}
		if err := unix.Unmount(dir, 0); err != nil {
			return err
		}
		_, err := run("e2fsck", "-fn", loop)
		return errors.Join(append(errs, err)...)
	}
	work, err := os.OpenFile(base, os.O_RDWR, 0)
	require.NoError(t, err)
	defer work.Close()
	writes, flushes, controls := 0, 0, 0
	for _, e := range log {
		if e.n == 0 {
			require.NotZero(t, e.flags&logFlush)
			flushes++
			continue
		}
		data := e.data
		if e.flags&logDiscard != 0 {
			data = make([]byte, e.n*logSector)
		}
		require.LessOrEqual(t, (e.at+e.n)*logSector, uint64(size))
		_, err := work.WriteAt(data, int64(e.at*logSector))
		require.NoError(t, err)
		writes++
		require.NoError(t, check(work, writes), "the power is cut after write %d of %d", writes, total)
		if writes == total/2 {
			controls++
			require.Error(t, check(work, total), "the check does not see that half of the writes are missing")
		}
	}
	require.Equal(t, total, writes, "QEMU's figures and its log are not of the same writes")
	require.Greater(t, flushes, files, "each fsync flushes")
	require.NotZero(t, controls)
	t.Logf("%d writes, %d flushes", writes, flushes)
}
