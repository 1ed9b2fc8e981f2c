package faultfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/lab/faultfs"
)

const blk = 4096

// mount returns a mount with one file of 16 pages, of which the first 4 are full of ones.
func mount(t *testing.T) (*faultfs.FS, string) {
	t.Helper()
	if fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0); err != nil {
		t.Skipf("needs FUSE: /dev/fuse: %v", err)
	} else {
		unix.Close(fd)
	}
	dir, back := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(back, "image"), bytes.Repeat([]byte{1}, 4*blk), 0o600))
	require.NoError(t, os.Truncate(filepath.Join(back, "image"), 16*blk))
	f, err := faultfs.Mount(dir, back)
	if err != nil {
		t.Skipf("needs a mount of FUSE: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f, filepath.Join(dir, "image")
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	h, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { h.Close() })
	return h
}

func put(t *testing.T, h *os.File, p int64, v byte) {
	t.Helper()
	_, err := h.WriteAt(bytes.Repeat([]byte{v}, blk), p*blk)
	require.NoError(t, err)
}

// at returns the byte that a page is full of.
func at(t *testing.T, h *os.File, p int64) byte {
	t.Helper()
	b := make([]byte, blk)
	_, err := h.ReadAt(b, p*blk)
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat(b[:1], blk), b)
	return b[0]
}

// TestLostAfterFsync: as on Linux one fsync returns the error, the next one succeeds, and the data is lost.
func TestLostAfterFsync(t *testing.T) {
	f, path := mount(t)
	h := open(t, path)
	put(t, h, 0, 2)
	require.NoError(t, h.Sync())
	f.Add(faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Drop: true})
	for _, p := range []int64{0, 1, 5, 6} {
		put(t, h, p, 3)
	}
	require.ErrorIs(t, h.Sync(), unix.EIO)
	require.Equal(t, byte(3), at(t, h, 0), "the system's cache has it still")
	put(t, h, 6, 4) // dirty again
	require.NoError(t, h.Sync())
	require.NoError(t, h.Close())
	require.Eventually(t, func() bool { return f.Open() == 0 }, time.Minute, time.Millisecond, "RELEASE has no answer that close waits for")
	h = open(t, path)
	require.Equal(t, []byte{2, 1, 0, 4}, []byte{at(t, h, 0), at(t, h, 1), at(t, h, 5), at(t, h, 6)})
	put(t, h, 0, 5)
	f.Cut()
	require.Equal(t, byte(2), at(t, h, 0))
	require.Equal(t, 1, f.Fired())
}

func TestDurableWrite(t *testing.T) {
	f, path := mount(t)
	h := open(t, path)
	f.Add(faultfs.Rule{Op: faultfs.OpFsync, Skip: 1, Times: 1, Drop: true, Err: unix.ENOSPC})
	b := [][]byte{bytes.Repeat([]byte{2}, blk)}
	_, err := unix.Pwritev2(int(h.Fd()), b, 0, unix.RWF_DSYNC)
	require.NoError(t, err)
	_, err = unix.Pwritev2(int(h.Fd()), b, blk, unix.RWF_DSYNC)
	require.ErrorIs(t, err, unix.ENOSPC)
	f.Forget()
	require.Equal(t, []byte{2, 1}, []byte{at(t, h, 0), at(t, h, 1)})
}

func TestRules(t *testing.T) {
	f, path := mount(t)
	h := open(t, path)
	remove := f.Add(faultfs.Rule{Op: faultfs.OpRead, File: "image", Off: 2 * blk, Len: blk})
	b := make([]byte, 4*blk)
	_, err := h.ReadAt(b, 0)
	require.ErrorIs(t, err, unix.EIO)
	_, err = h.ReadAt(b, 3*blk)
	require.NoError(t, err)
	remove()
	_, err = h.ReadAt(b, 0)
	require.NoError(t, err)

	f.Add(faultfs.Rule{Op: faultfs.OpWrite, Part: blk, Times: 1})
	_, err = h.WriteAt(bytes.Repeat([]byte{7}, 2*blk), 0)
	require.ErrorIs(t, err, unix.EIO)
	require.Equal(t, []byte{7, 1}, []byte{at(t, h, 0), at(t, h, 1)})
	f.ReadOnly()
	_, err = h.WriteAt(b, 0)
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorIs(t, h.Truncate(0), unix.EROFS)
	require.ErrorIs(t, unix.Fallocate(int(h.Fd()), 3, 0, blk), unix.EROFS)
	back := f.Vanish()
	_, err = h.ReadAt(b, 0)
	require.ErrorIs(t, err, unix.ENODEV)
	back()
	_, err = h.ReadAt(b, 0)
	require.NoError(t, err)
}

func TestRoom(t *testing.T) {
	f, path := mount(t)
	h := open(t, path)
	f.Room(2 * blk)
	put(t, h, 0, 2) // no hole
	n, err := unix.Pwrite(int(h.Fd()), make([]byte, 4*blk), 8*blk)
	require.NoError(t, err)
	require.Equal(t, 2*blk, n)
	_, err = h.WriteAt(make([]byte, blk), 10*blk)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, unix.Fallocate(int(h.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 3*blk))
	require.ErrorIs(t, unix.Fallocate(int(h.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, 8*blk, 8*blk), unix.ENOSPC)
	n, err = unix.Pwrite(int(h.Fd()), make([]byte, 4*blk), 10*blk)
	require.NoError(t, err)
	require.Equal(t, 3*blk, n)
	f.Cut()
	require.Equal(t, byte(1), at(t, h, 2), "a hole that was not synchronized is none")
}

func TestWaitAndTruncate(t *testing.T) {
	f, path := mount(t)
	h := open(t, path)
	gate := make(chan struct{})
	f.Add(faultfs.Rule{Op: faultfs.OpFsync, Times: 1, Err: faultfs.None, Wait: gate})
	done := make(chan error, 1)
	go func() { done <- h.Sync() }()
	require.Never(t, func() bool { return len(done) > 0 }, 20*time.Millisecond, time.Millisecond)
	close(gate)
	require.NoError(t, <-done)
	put(t, h, 0, 9)
	put(t, h, 3, 9)
	require.NoError(t, os.Truncate(path, 2*blk))
	f.Cut()
	st, err := h.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 2*blk, st.Size())
	require.Equal(t, byte(1), at(t, h, 0))
}
