package ext4_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev"
	"github.com/lanefs/lanefs/fs/ext4"
	"github.com/lanefs/lanefs/fs/ext4/disk/disktest"
)

// TestKernelsHugeDir reads and changes a directory of 100,000 names that the kernel made.
func TestKernelsHugeDir(t *testing.T) {
	const names, each = 100_000, 50_000 // names of one file each: the directory is what matters
	name := func(k int) string { return fmt.Sprintf("name %d", k) }
	img := disktest.Make(t, "64M", "-b", "4096")
	disktest.Mount(t, img, "", func(mnt string) {
		require.NoError(t, os.Mkdir(filepath.Join(mnt, "dir"), 0o755))
		for k := range names {
			file := filepath.Join(mnt, fmt.Sprint("file", k/each))
			if k%each == 0 {
				require.NoError(t, os.WriteFile(file, nil, 0o644))
			}
			require.NoError(t, unix.Link(file, filepath.Join(mnt, "dir", name(k))))
		}
	})
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	dir, err := root.Lookup("dir")
	require.NoError(t, err)
	got := list(t, dir)
	require.Len(t, got, names)
	slices.Sort(got)
	require.Len(t, slices.Compact(got), names)
	first, err := dir.Lookup(name(0))
	require.NoError(t, err)
	require.EqualValues(t, each+1, first.Attr().Links)
	for k := range names {
		i, err := dir.Lookup(name(k))
		require.NoError(t, err, name(k))
		require.Equal(t, k < each, i == first)
		i.Put()
	}
	_, err = dir.Lookup(name(names))
	require.ErrorIs(t, err, ext4.ErrNotExist)
	for k := 0; k < names; k += 10 {
		require.NoError(t, dir.Unlink(name(k)))
	}
	for k := range 5000 {
		require.NoError(t, dir.Link(first, fmt.Sprint("ours ", k)))
	}
	first.Put()
	dir.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(mnt string) {
		d, err := os.Open(filepath.Join(mnt, "dir"))
		require.NoError(t, err)
		defer d.Close()
		got, err := d.Readdirnames(-1)
		require.NoError(t, err)
		require.Len(t, got, names-names/10+5000)
		require.FileExists(t, filepath.Join(mnt, "dir", "ours 4999"))
		require.FileExists(t, filepath.Join(mnt, "dir", name(names-1)))
		require.NoFileExists(t, filepath.Join(mnt, "dir", name(names-10)))
	})
}

// TestKernelsDeepFile reads, fills and frees a file whose extent tree the kernel made three levels deep: 30,000 extents on
// blocks of 1 KiB.
func TestKernelsDeepFile(t *testing.T) {
	const extents = 30_000
	block := func(k int) []byte {
		b := make([]byte, 1024)
		binary.LittleEndian.PutUint64(b, uint64(k)^0x5a5a5a)
		return b
	}
	img := disktest.Make(t, "96M", "-b", "1024")
	disktest.Mount(t, img, "", func(mnt string) {
		f, err := os.Create(filepath.Join(mnt, "f"))
		require.NoError(t, err)
		defer f.Close()
		for k := range extents { // every second block, its neighbours left to be holes
			_, err := f.WriteAt(block(k), int64(2*k)<<10)
			require.NoError(t, err)
		}
	})
	// debugfs says level and depth first.
	require.Contains(t, disktest.Debugfs(t, img, "extents -n f"), "2/ 3")

	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	f, err := root.Lookup("f")
	require.NoError(t, err)
	check := func(odd bool) {
		t.Helper()
		zero := make([]byte, 1024)
		for k := 0; k < extents; k += 500 {
			d, err := f.Read(int64(2*k)<<10, 500*2048)
			require.NoError(t, err)
			for j := range min(500, extents-k) {
				b := d.Bytes()[j*2048:]
				require.True(t, bytes.Equal(b[:1024], block(k+j)), "block %d", 2*(k+j))
				if len(b) < 2048 {
					continue // the last one has nothing behind it
				}
				want := zero
				if odd {
					want = block(-k - j)
				}
				require.True(t, bytes.Equal(b[1024:2048], want), "block %d", 2*(k+j)+1)
			}
			d.Release()
		}
	}
	check(false)
	for k := range extents {
		_, err := f.Write(int64(2*k+1)<<10, block(-k))
		require.NoError(t, err)
	}
	check(true)
	f.Put()
	root.Put()
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(mnt string) {
		g, err := os.Open(filepath.Join(mnt, "f"))
		require.NoError(t, err)
		defer g.Close()
		for k := range extents {
			b := make([]byte, 2048)
			_, err := io.ReadFull(g, b)
			require.NoError(t, err)
			require.True(t, bytes.Equal(b, append(block(k), block(-k)...)), "block %d", 2*k)
		}
	})
	v, done = open(t, img, ext4.Options{})
	root, err = v.Root()
	require.NoError(t, err)
	free := v.Statfs().BlocksFree
	require.NoError(t, root.Unlink("f"))
	root.Put()
	require.NoError(t, v.Sync())
	require.GreaterOrEqual(t, v.Statfs().BlocksFree, free+2*extents)
	done()
	disktest.Fsck(t, img)
}

// TestLargestFile writes and reads the last block of the largest file that ext4 can have, 16 TiB less a block of 4 KiB, and
// the kernel's.
func TestLargestFile(t *testing.T) {
	const largest = 16<<40 - 4096
	img := disktest.Make(t, "32M", "-b", "4096")
	disktest.Mount(t, img, "", func(mnt string) {
		f, err := os.Create(filepath.Join(mnt, "kernel"))
		require.NoError(t, err)
		defer f.Close()
		_, err = f.WriteAt([]byte("the kernel's end"), largest-16)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("x"), largest)
		require.ErrorIs(t, err, unix.EFBIG)
	})
	v, done := open(t, img, ext4.Options{})
	root, err := v.Root()
	require.NoError(t, err)
	end := func(name, want string) {
		t.Helper()
		f, err := root.Lookup(name)
		require.NoError(t, err)
		defer f.Put()
		require.EqualValues(t, largest, f.Attr().Size)
		d, err := f.Read(largest-16, 100)
		require.NoError(t, err)
		require.Equal(t, want, string(d.Bytes()))
		d.Release()
		at, err := f.Seek(0, ext4.SeekData)
		require.NoError(t, err)
		require.EqualValues(t, largest-4096, at)
		at, err = f.Seek(at, ext4.SeekHole)
		require.NoError(t, err)
		require.EqualValues(t, largest, at)
	}
	end("kernel", "the kernel's end")
	f := create(t, root, "ours")
	n, err := f.Write(largest-16, []byte("our own file's end and more"))
	require.ErrorIs(t, err, ext4.ErrTooBig)
	require.Equal(t, 16, n, "as much as there is room for")
	_, err = f.Write(largest, []byte("x"))
	require.ErrorIs(t, err, ext4.ErrTooBig)
	_, err = f.Write(math.MaxInt64-1, []byte("xyz"))
	require.ErrorIs(t, err, ext4.ErrTooBig)
	size := int64(largest + 1)
	_, err = f.SetAttr(ext4.SetAttr{Size: &size})
	require.ErrorIs(t, err, ext4.ErrTooBig)
	require.ErrorIs(t, f.Fallocate(0, largest-10, 11), ext4.ErrTooBig)
	require.NoError(t, f.Fallocate(ext4.FallocKeepSize, largest-20<<10, 10<<10))
	f.Put()
	end("ours", "our own file's e")
	root.Put()
	done()
	disktest.Fsck(t, img)
	disktest.Mount(t, img, "ro", func(mnt string) {
		g, err := os.Open(filepath.Join(mnt, "ours"))
		require.NoError(t, err)
		defer g.Close()
		b := make([]byte, 100)
		n, err := g.ReadAt(b, largest-16)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "our own file's e", string(b[:n]))
	})
}

// TestExternalJournal: a volume whose journal is on another device, and that device, are refused by name.
func TestExternalJournal(t *testing.T) {
	disktest.Tool(t, "losetup", "mke2fs")
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mke2fs takes a journal on a block device only, and attaching a loop device needs root")
	}
	journal := filepath.Join(t.TempDir(), "journal.img")
	require.NoError(t, os.WriteFile(journal, nil, 0o600))
	require.NoError(t, os.Truncate(journal, 16<<20))
	out, err := exec.Command("mke2fs", "-q", "-F", "-b", "4096", "-O", "journal_dev", journal).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("losetup", "--find", "--show", journal).CombinedOutput()
	if err != nil {
		t.Skipf("SKIPPED: no loop device: %s", out)
	}
	loop := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		out, err := exec.Command("losetup", "--detach", loop).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	img := disktest.Make(t, "32M", "-b", "4096", "-J", "device="+loop)
	fd, err := os.Open(journal)
	require.NoError(t, err)
	defer fd.Close()
	var u [16]byte
	_, err = fd.ReadAt(u[:], 1024+0x68) // s_uuid
	require.NoError(t, err)
	uuid := fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	for path, says := range map[string]string{img: uuid, journal: "journal_dev"} {
		for _, opt := range []ext4.Options{{}, {ReadOnly: true}} {
			dev, err := blockdev.OpenFile(path, 512)
			require.NoError(t, err)
			_, err = ext4.Open(dev, opt)
			require.ErrorContains(t, err, says)
			require.NoError(t, dev.Close())
		}
	}
}

// TestDirFsync: what was done to the names of a directory before its fsync is there after a power cut.
func TestDirFsync(t *testing.T) {
	for name, args := range map[string][]string{"defaults": nil, "1k, no orphan file": {"-b", "1024", "-O", "^orphan_file"}} {
		t.Run(name, func(t *testing.T) {
			img := disktest.Make(t, "32M", args...)
			dev, err := blockdev.OpenFile(img, 512)
			require.NoError(t, err)
			defer dev.Close()
			dev.CacheWrites()
			v, err := ext4.Open(dev, ext4.Options{CommitInterval: time.Hour, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
			require.NoError(t, err)
			root, err := v.Root()
			require.NoError(t, err)
			dir, err := root.Mkdir("dir", 0o755, 0, 0)
			require.NoError(t, err)
			require.NoError(t, root.Fsync(false))
			for k, step := range []struct {
				name string
				do   func() error
				want []string
			}{
				{"create", func() error { return put(dir.Create("a", unix.S_IFREG|0o644, 0, 0, 0, 0)) }, []string{"a"}},
				{"link", func() error { return in(dir, "a", func(f *ext4.Inode) error { return dir.Link(f, "b") }) }, []string{"a", "b"}},
				{"mkdir", func() error { return put(dir.Mkdir("c", 0o755, 0, 0)) }, []string{"a", "b", "c"}},
				{"symlink", func() error { return put(dir.Symlink("d", "target", 0, 0)) }, []string{"a", "b", "c", "d"}},
				{"rename", func() error { return dir.Rename("b", dir, "e", 0) }, []string{"a", "c", "d", "e"}},
				{"replace", func() error { return dir.Rename("d", dir, "e", 0) }, []string{"a", "c", "e"}},
				{"unlink", func() error { return dir.Unlink("a") }, []string{"c", "e"}},
				{"rmdir", func() error { return dir.Rmdir("c") }, []string{"e"}},
			} {
				require.NoError(t, step.do(), step.name)
				require.NoError(t, dir.Fsync(k%2 == 0), step.name)
				require.NoError(t, put(dir.Create("not durable", unix.S_IFREG|0o644, 0, 0, 0, 0)))
				require.NoError(t, dir.Unlink("not durable"))
				require.NoError(t, dev.Cut(nil))

				after := filepath.Join(t.TempDir(), "after.img")
				copySparse(t, img, after)
				w, done := open(t, after, ext4.Options{})
				top, err := w.Root()
				require.NoError(t, err)
				require.NoError(t, in(top, "dir", func(d *ext4.Inode) error {
					got := list(t, d)
					slices.Sort(got)
					require.Equal(t, step.want, got, step.name)
					return nil
				}))
				top.Put()
				done()
				disktest.Fsck(t, after)
			}
			dir.Put()
			root.Put()
			require.NoError(t, v.Close())
		})
	}
}
