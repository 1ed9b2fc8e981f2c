package softctl

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/faultfs"
	"github.com/lanefs/lanefs/nvmeq/softctl/media"
)

// failing is a host over an image on a file system that fails.
func failing(t *testing.T, opt Options) (*host, *pair, *faultfs.FS) {
	t.Helper()
	if fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0); err != nil {
		t.Skipf("needs FUSE: /dev/fuse: %v", err)
	} else {
		unix.Close(fd)
	}
	dir, back := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(back, "image"), make([]byte, 1<<20), 0o600))
	f, err := faultfs.Mount(dir, back)
	if err != nil {
		t.Skipf("needs a mount of FUSE: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	h := newHostOn(t, filepath.Join(dir, "image"), opt).enable()
	return h, h.queue(1, 16), f
}

// until polls for what never comes if it does not in this time.
func until(t testing.TB, is func() bool) {
	t.Helper()
	require.Eventually(t, is, 2*time.Minute, time.Millisecond)
}

func fua(r raw) raw { return r.dw(12, r[12]|1<<30) }

// TestFlushFailsForGood: the file system tells of the error once, as Linux does. Nothing is durable from then on, whatever is reset,
// before the image is opened anew.
func TestFlushFailsForGood(t *testing.T) {
	for name, ask := range map[string]func(at uint64) raw{
		"flush":            func(uint64) raw { return cmdOf(opFlush, 1) },
		"flush of all":     func(uint64) raw { return cmdOf(opFlush, nsidAll) },
		"write with FUA":   func(at uint64) raw { return fua(rw(opWrite, 1, 64, 8).prp(at, 0)) },
		"zeroes with FUA":  func(uint64) raw { return fua(rw(opWriteZeroes, 1, 64, 8)) },
		"write, cache off": nil,
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h, q, f := failing(t, Options{Log: textLog(&log)})
			b, at := h.alloc(4096)
			random(1, b)
			if ask == nil {
				h.expect(success, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 0)) // Volatile Write Cache
				ask = func(at uint64) raw { return rw(opWrite, 1, 64, 8).prp(at, 0) }
			}
			h.expect(success, q, rw(opWrite, 1, 0, 8).prp(at, 0))
			f.Add(faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Drop: true})
			h.expect(WriteFault|doNotRetry, q, ask(at))
			require.Equal(t, 1, f.Fired())
			again := func() {
				t.Helper()
				h.expect(WriteFault|doNotRetry, q, cmdOf(opFlush, 1))
				h.expect(WriteFault|doNotRetry, q, cmdOf(opFlush, nsidAll))
				h.expect(WriteFault|doNotRetry, q, fua(rw(opWrite, 1, 0, 8).prp(at, 0)))
				h.expect(WriteFault|doNotRetry, q, fua(rw(opWriteZeroes, 1, 8, 8)))
				h.expect(success, q, rw(opRead, 1, 0, 8).prp(at, 0))
			}
			again()
			h.expect(success, h.admin, cmdOf(0x00, 0).dw(10, 1))
			h.expect(success, h.admin, cmdOf(0x04, 0).dw(10, 1))
			q = h.queue(2, 16)
			again()
			require.NoError(t, h.c.Reset())
			h.enable()
			q = h.queue(1, 16)
			again()
			h.expect(WriteFault|doNotRetry, h.admin, cmdOf(0x09, 0).dw(10, 6).dw(11, 0)) // the cache cannot be turned off
			require.Equal(t, 1, f.Fired(), "the file system has nothing to complain of any more")
			require.ErrorContains(t, h.c.Failed(), "input/output error")
			require.ErrorIs(t, h.c.Close(), unix.EIO)
			require.ErrorIs(t, h.c.Close(), unix.EIO)

			c, err := Open(h.c.Name(), Options{Log: quiet()})
			require.NoError(t, err)
			require.NoError(t, c.Failed())
			require.NoError(t, c.Close())
		})
	}
}

// TestFlushesThatOverlap: one of two is told of the error. The other one does not succeed.
func TestFlushesThatOverlap(t *testing.T) {
	h, q, f := failing(t, Options{})
	q2 := h.queue(2, 16)
	_, at := h.alloc(4096)
	h.expect(success, q, rw(opWrite, 1, 0, 8).prp(at, 0))
	gate := make(chan struct{})
	f.Add(faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Drop: true, Wait: gate})
	first := h.put(q, cmdOf(opFlush, 1))
	h.ring(q)
	h.c.Step(1)
	until(t, func() bool { return f.Fired() == 1 })
	second := h.put(q2, cmdOf(opFlush, 1))
	h.ring(q2)
	h.c.Step(2)
	require.Equal(t, 1, f.Count(faultfs.OpFsync))
	close(gate)
	for p, cid := range map[*pair]uint16{q: first, q2: second} {
		var e entry
		until(t, func() (ok bool) { h.c.Step(p.id); e, ok = h.poll(p); return ok })
		require.Equal(t, cid, e.cid())
		require.Equal(t, WriteFault|doNotRetry, e.status()&^statusMore)
	}
}

// TestFullWhenSynchronized: no room for what was accepted is no lack of room.
func TestFullWhenSynchronized(t *testing.T) {
	h, q, f := failing(t, Options{})
	_, at := h.alloc(4096)
	f.Add(faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Drop: true, Err: unix.ENOSPC})
	h.expect(WriteFault|doNotRetry, q, fua(rw(opWrite, 1, 0, 8).prp(at, 0)))
	f.Clear()
	f.Add(faultfs.Rule{Op: faultfs.OpWrite, Times: 1, Err: unix.ENOSPC})
	h.expect(capacityExceeded, q, rw(opWrite, 1, 0, 8).prp(at, 0))
}

// TestTruncated: what is gone fails and stays so, what is left works, nothing makes the image grow, and it is said.
func TestTruncated(t *testing.T) {
	for _, regrown := range []bool{false, true} {
		var log bytes.Buffer
		h, q := ready(t, Options{Log: textLog(&log)})
		b, at := h.alloc(8192)
		random(1, b)
		h.expect(success, q, rw(opWrite, 1, 0, 8).prp(at, 0))
		require.NoError(t, os.Truncate(h.path, 1<<20+512))
		h.expect(WriteFault|doNotRetry, q, rw(opWrite, 1, 1<<20/512-7, 16).prp(at, at+4096))
		if regrown {
			require.NoError(t, os.Truncate(h.path, testSize))
		}
		want, err := os.Stat(h.path)
		require.NoError(t, err)
		for _, r := range []raw{rw(opRead, 1, 1<<20/512-6, 8).prp(at, 0), rw(opRead, 1, 8192, 8).prp(at, 0), rw(opVerify, 1, 8192, 8)} {
			h.expect(unrecoveredRead|doNotRetry, q, r)
		}
		for _, r := range []raw{rw(opWrite, 1, 8192, 8).prp(at, 0), fua(rw(opWrite, 1, 8192, 8).prp(at, 0)), rw(opWriteZeroes, 1, 8192, 8),
			rw(opWrite, 1, 16384-8, 8).prp(at, 0)} {
			h.expect(WriteFault|doNotRetry, q, r)
		}
		h.expect(success, q, rw(opWrite, 1, 8, 8).prp(at, 0))
		h.expect(success, q, rw(opRead, 1, 8, 8).prp(at, 0))
		h.expect(WriteFault|doNotRetry, q, cmdOf(opFlush, 1))
		got, err := os.Stat(h.path)
		require.NoError(t, err)
		require.Equal(t, want.Size(), got.Size())
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("the image was truncated: ")))
		require.ErrorContains(t, h.c.Failed(), "was truncated while in use")
		require.ErrorIs(t, h.c.Close(), media.ErrTruncated)
	}
}

// TestTruncatedUnseen: no command has asked for what is gone. Flush, or at least Close, tells.
func TestTruncatedUnseen(t *testing.T) {
	for _, ro := range []bool{false, true} {
		h, q := ready(t, Options{ReadOnly: ro})
		require.NoError(t, os.Truncate(h.path, 4096))
		if !ro {
			h.expect(WriteFault|doNotRetry, q, cmdOf(opFlush, 1))
		}
		require.ErrorIs(t, h.c.Close(), media.ErrTruncated)
	}
}

// TestTruncatedPages: pages that are pinned outlive their file. They are not shown any more.
func TestTruncatedPages(t *testing.T) {
	p := &pinning{pins: map[*byte]bool{}}
	r := newReader(t, p, Options{})
	r.pass()
	r.pass()
	r.pins(p, 2)
	require.NoError(t, os.Truncate(r.path, chunkSize))
	r.expect(unrecoveredRead|doNotRetry, r.q, r.move(2, chunkSize/512, 8, r.at))
	r.read(0, readerStep)
	require.NoError(t, os.Truncate(r.path, int64(len(r.want))))
	r.expect(unrecoveredRead|doNotRetry, r.q, r.move(2, chunkSize/512, 8, r.at))
	require.ErrorIs(t, r.c.Close(), media.ErrTruncated)
	require.Zero(t, p.count())
}

// shrinking is a controller for a device of which nothing behind 1 MiB is left, and a queue.
func shrinking(t *testing.T) (h *host, q *pair, at uint64) {
	t.Helper()
	dev, p := newLoop(t, testSize)
	h = newHostOn(t, dev, Options{}).enable()
	q = h.queue(1, 16)
	_, at = h.alloc(4096)
	require.NoError(t, os.Truncate(p, 1<<20))
	out, err := exec.Command("losetup", "-c", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return h, q, at
}

// TestZeroShrunk: zeroes that reach over the new end of a device have failed, and are no success because Linux writes what is there.
func TestZeroShrunk(t *testing.T) {
	for _, lba := range []uint64{2040, 2048, 8192} {
		h, q, at := shrinking(t)
		h.expect(WriteFault|doNotRetry, q, rw(opWriteZeroes, 1, lba, 16))
		h.expect(success, q, rw(opWriteZeroes, 1, 2040, 8))
		h.expect(success, q, rw(opRead, 1, 0, 8).prp(at, 0))
		require.ErrorIs(t, h.c.Close(), media.ErrTruncated)
	}
}

// TestDeviceShrinks: a device of which the end is gone is truncated, not full, whatever Linux calls it.
func TestDeviceShrinks(t *testing.T) {
	h, q, at := shrinking(t)
	h.expect(WriteFault|doNotRetry, q, rw(opWrite, 1, 8192, 8).prp(at, 0))
	h.expect(unrecoveredRead|doNotRetry, q, rw(opRead, 1, 8192, 8).prp(at, 0))
	h.expect(success, q, rw(opRead, 1, 0, 8).prp(at, 0))
	h.expect(WriteFault|doNotRetry, q, cmdOf(opFlush, 1))
	require.ErrorIs(t, h.c.Close(), media.ErrTruncated)
}
