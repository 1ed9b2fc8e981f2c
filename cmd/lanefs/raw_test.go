package main

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRaw: fio and dd, and the programs of e2fsprogs, which make, check and look into a volume, work on a device that is shown as a file; lanefs mounts it afterwards.
func TestRaw(t *testing.T) {
	p := newPlace(t)
	img := p.path("img")
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.Truncate(img, 64<<20))
	file := p.path("raw")
	p.dirs = append(p.dirs, file)
	p.ok("raw", "--gpu", "host", img, file)
	if _, err := exec.LookPath("fio"); err == nil { // which sees that what it reads is what it wrote
		tool(t, "fio", "--name=raw", "--filename="+file, "--direct=1", "--rw=randwrite", "--bs=4k", "--offset=32m", "--size=8m", "--ioengine=psync",
			"--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--allow_file_create=0")
	}
	tool(t, "mkfs.ext4", "-q", "-F", file)
	tool(t, "debugfs", "-w", "-R", "mkdir there", file)
	fsck(t, file)
	require.Contains(t, p.ok("stat", file), "SQ doorbells")
	tool(t, "dd", "if="+file, "of="+p.path("copied"), "bs=64k", "iflag=direct", "status=none")
	fsck(t, p.path("copied"))

	// Nobody else has the device meanwhile, in either direction.
	mnt := p.mkdir("mnt")
	require.Contains(t, p.fails("mount", "--gpu", "host", img, mnt), "shows it as the file")
	require.Contains(t, p.fails("raw", "--gpu", "host", img, p.path("other")), "is in use: process")
	require.NoFileExists(t, p.path("other"), "a file for a device that is refused")
	require.Contains(t, p.ok("check", file), "mounts it read-write")
	p.ok("umount", file)
	fsck(t, img)
	p.ok("mount", "--gpu", "host", img, mnt)
	require.DirExists(t, mnt+"/there")
	require.Contains(t, p.fails("raw", "--gpu", "host", img, file), "is in use: process")
	require.FileExists(t, file, "it was there before")
	p.ok("umount", mnt)

	metrics := p.path("metrics")
	p.ok("raw", "--gpu", "host", "--read-only", "-o", "metrics="+metrics, img, file)
	require.Contains(t, scrape(t, metrics), "lanefs_mount_info{")
	_, err := os.OpenFile(file, os.O_RDWR, 0)
	require.ErrorIs(t, err, unix.EROFS)
	tool(t, "debugfs", "-R", "ls", file)
	p.ok("umount", file)
	require.Contains(t, p.fails("raw", "--gpu", "host", img, mnt), "is a directory")
	require.Contains(t, p.fails("raw", "--gpu", "host", img, img), "is the device itself")
}

// TestRawBytes: reads, writes, zeroes and truncations of any size at any place agree with a model, through the page cache and beside it.
func TestRawBytes(t *testing.T) {
	const size = 4 << 20
	p := newPlace(t)
	img, file := p.path("img"), p.path("raw")
	require.NoError(t, os.WriteFile(img, make([]byte, size), 0o600))
	p.dirs = append(p.dirs, file)
	_, said, err := p.run("raw", "--gpu", "host", "-o", "lba=4096", img, file)
	require.NoError(t, err, said)
	require.Contains(t, said, "have 4096 bytes, which a file cannot say: mkfs.ext4 -b 4096 or more")
	want := make([]byte, size)
	r := rand.New(rand.NewPCG(3, 3))
	f, err := os.OpenFile(file, os.O_RDWR|os.O_TRUNC, 0) // which a block device ignores
	require.NoError(t, err)
	direct, err := os.OpenFile(file, os.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)
	for range 400 {
		off := r.IntN(size)
		n := min(r.IntN(20_000), size-off)
		b := want[off : off+n]
		switch r.IntN(5) {
		case 0:
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			_, err = f.WriteAt(b, int64(off))
		case 1:
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			_, err = direct.WriteAt(b, int64(off))
		case 2:
			clear(b)
			if n > 0 {
				err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
			}
		default:
			got := make([]byte, n)
			_, err = []*os.File{f, direct}[r.IntN(2)].ReadAt(got, int64(off))
			require.True(t, bytes.Equal(b, got), "%d bytes at %d", n, off)
		}
		require.NoError(t, err)
	}
	const punch, zero = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE
	require.NoError(t, unix.Fallocate(int(f.Fd()), punch, size-5000, size), "what is behind the end is left out")
	require.NoError(t, unix.Fallocate(int(f.Fd()), zero|unix.FALLOC_FL_KEEP_SIZE, size-6000, size))
	clear(want[size-6000:])
	require.ErrorIs(t, unix.Fallocate(int(f.Fd()), zero, size-5000, size), unix.EINVAL)
	require.ErrorIs(t, unix.Fallocate(int(f.Fd()), punch, size, 4096), unix.EINVAL)
	require.NoError(t, f.Sync())
	require.ErrorIs(t, f.Truncate(size/2), unix.EINVAL)
	_, err = f.WriteAt([]byte{1}, size)
	require.ErrorIs(t, err, unix.ENOSPC)
	st, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, size, st.Size())
	require.NoError(t, f.Close())
	require.NoError(t, direct.Close())
	p.ok("umount", file)
	got, err := os.ReadFile(img)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

// TestRawNames: what cannot be FILE is said of FILE.
func TestRawNames(t *testing.T) {
	p := newPlace(t)
	img := p.path("img")
	require.NoError(t, os.WriteFile(img, make([]byte, 4096), 0o600))
	require.Contains(t, p.fails("raw", "--gpu", "host", img, ""), "FILE is an empty name")
	require.Contains(t, p.fails("raw", "--gpu", "host", img, p.path("none/raw")), `none/raw" cannot be created: no such file or directory`)
}

// TestRawFails: where the device fails, the file says EIO, never other bytes, and so does fsync of what was written; the rest goes on, and it unmounts.
func TestRawFails(t *testing.T) {
	const size = 4 << 20
	p := newPlace(t)
	img, file := p.path("img"), p.path("raw")
	require.NoError(t, os.WriteFile(img, bytes.Repeat([]byte("lane"), size/4), 0o600))
	p.dirs = append(p.dirs, file)
	p.ok("raw", "--gpu", "host", img, file)
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	direct, err := os.OpenFile(file, os.O_RDWR|unix.O_DIRECT, 0)
	require.NoError(t, err)
	defer direct.Close()
	_, err = f.WriteAt([]byte("before"), 3<<20)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, os.Truncate(img, size/2)) // half of the medium is gone

	b := make([]byte, 4096)
	for _, f := range []*os.File{f, direct} {
		_, err = f.ReadAt(b, 3<<20+64<<10)
		require.ErrorIs(t, err, unix.EIO)
		_, err = f.ReadAt(b, 1<<20)
		require.NoError(t, err)
		require.Equal(t, "lane", string(b[:4]))
	}
	_, err = f.WriteAt(b, 1<<20) // that much is there
	require.NoError(t, err)
	require.ErrorIs(t, f.Sync(), unix.EIO, "fsync does not ask the device")
	_, err = direct.WriteAt(b, 3<<20)
	require.ErrorIs(t, err, unix.EIO)
	_, err = f.WriteAt(b, 3<<20)
	require.ErrorIs(t, errors.Join(err, f.Sync()), unix.EIO)
	require.NoError(t, f.Close())
	require.NoError(t, direct.Close())
	p.run("umount", file) // may say what could not be flushed
	mounts, err := os.ReadFile("/proc/self/mounts")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), file)
}
