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

// Power cuts by the records of others: a workload is written through LaneFS, somebody else records what reaches the medium, and the medium as it is
// after each write of the record is recovered by the kernel and checked.

// The log of the kernel's dm-log-writes, which QEMU's blklogwrites writes too: a superblock, then for each write, in units of sectors, an entry
// and the data. A mark has its name behind the entry.
const (
	logMagic   = 0x6a736677736872
	logSector  = 512
	logFlush   = 1 << 0
	logFUA     = 1 << 1
	logDiscard = 1 << 2
	logMark    = 1 << 3
	logEntries = 32 // bytes of an entry
)

type logEntry struct {
	at, n uint64 // sectors
	flags uint64
	data  []byte // of a mark: its name
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
		switch {
		case e.flags&logMark != 0:
			e.data = bytes.Clone(b[logEntries:][:le.Uint64(b[24:])])
		case e.flags&logDiscard == 0:
			e.data = make([]byte, e.n*logSector)
			_, err := io.ReadFull(f, e.data)
			require.NoError(t, err)
		}
		all = append(all, e)
	}
	return all
}

// The workload: files that are written, synchronized, and some of them removed.
const (
	cutSize  = 64 << 20
	cutFiles = 24
)

func cutName(i int) string      { return fmt.Sprintf("d%d/f%d", i%3, i) }
func cutContent(i int) []byte   { return pattern(512+i*3001/8*8, byte(i)) }
func cutRemoved(i, by int) bool { return i%4 == 1 && by >= i+2 } // after the fsync of i+2

// cutFormat makes the volume on a device.
func cutFormat(t testing.TB, dev string) {
	t.Helper()
	must(t, "mkfs.ext4", "-q", "-F", "-O", "metadata_csum_seed,orphan_file", dev, "64M")
}

// cutWork writes the files to dir, and calls promised when the fsync of one has returned.
func cutWork(t testing.TB, dir string, promised func(i int)) {
	t.Helper()
	for i := range 3 {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprintf("d%d", i)), 0o755))
	}
	for i := range cutFiles {
		f, err := os.Create(filepath.Join(dir, cutName(i)))
		require.NoError(t, err)
		_, err = f.Write(cutContent(i))
		require.NoError(t, errors.Join(err, f.Sync(), f.Close()))
		promised(i)
		if i >= 2 && cutRemoved(i-2, i) {
			require.NoError(t, os.Remove(filepath.Join(dir, cutName(i-2))))
		}
	}
}

// cutCheck looks at a medium whose power was cut when the fsync of the files had returned for which promised says so. copied is a file for a copy of it.
func cutCheck(t testing.TB, medium, copied string, promised func(i int) bool) error {
	t.Helper()
	if err := dd(medium, copied, "bs=1M"); err != nil {
		return err
	}
	dir := t.TempDir()
	loop := strings.TrimSpace(must(t, "losetup", "-f"))
	must(t, "losetup", loop, copied)
	defer must(t, "losetup", "-d", loop)
	if err := unix.Mount(loop, dir, "ext4", 0, ""); err != nil {
		return fmt.Errorf("the kernel does not mount it: %w", err)
	}
	newest := -1 // that there is
	for i := range cutFiles {
		if _, err := os.Stat(filepath.Join(dir, cutName(i))); err == nil {
			newest = i
		}
	}
	var errs []error
	for i := range cutFiles {
		got, err := os.ReadFile(filepath.Join(dir, cutName(i)))
		switch has := promised(i); {
		case err != nil && !cutRemoved(i, newest) && (has || i < newest):
			errs = append(errs, fmt.Errorf("file %d of %d: %w", i, newest, err))
		case err == nil && cutRemoved(i, newest-1):
			errs = append(errs, fmt.Errorf("file %d was removed before %d was made", i, newest))
		case err == nil && (has || i < newest) && !bytes.Equal(got, cutContent(i)), err == nil && !bytes.HasPrefix(cutContent(i), got):
			errs = append(errs, fmt.Errorf("file %d of %d: wrong, %d bytes", i, newest, len(got)))
		}
	}
	if err := unix.Unmount(dir, 0); err != nil {
		return err
	}
	_, err := run("e2fsck", "-fn", loop)
	return errors.Join(append(errs, err)...)
}

// cutReplay writes a record, entry by entry, to a file with the medium as it was at first, and calls after for each: with false for one that changed
// nothing, a flush or a mark.
func cutReplay(t testing.TB, log []logEntry, base string, after func(e logEntry, wrote bool)) {
	t.Helper()
	work, err := os.OpenFile(base, os.O_RDWR, 0)
	require.NoError(t, err)
	defer work.Close()
	for _, e := range log {
		if e.n == 0 {
			require.NotZero(t, e.flags&(logFlush|logMark))
			after(e, false)
			continue
		}
		data := e.data
		if e.flags&logDiscard != 0 {
			data = make([]byte, e.n*logSector)
		}
		require.LessOrEqual(t, (e.at+e.n)*logSector, uint64(cutSize))
		_, err := work.WriteAt(data, int64(e.at*logSector))
		require.NoError(t, err)
		after(e, true)
	}
}
