package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestMountCopyUmount is the demo in small.
func TestMountCopyUmount(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 64), p.mkdir("mnt")
	src := p.mkdir("src")
	var want int64
	for i := range 200 {
		b := []byte(strings.Repeat(fmt.Sprintln(i), i*20))
		require.NoError(t, os.WriteFile(filepath.Join(src, itoa(i)), b, 0o600))
		require.NoError(t, os.Chmod(filepath.Join(src, itoa(i)), os.FileMode(0o600+i%8)))
		want += int64(len(b)+4095) / 4096 * 4096
	}
	require.NoError(t, os.Symlink("0", filepath.Join(src, "link")))

	require.Empty(t, p.ok("mount", img, mnt))
	at, err := p.stat(mnt) // mounting writes the superblock
	require.NoError(t, err)
	tool(t, "cp", "-a", src, mnt)
	tool(t, "sync", mnt)
	r, err := p.stat(mnt)
	require.NoError(t, err)
	require.True(t, r.Simulated)
	require.Equal(t, img, r.Device.Name)
	require.Equal(t, mnt, r.Dir)
	require.Equal(t, "host", r.Runtime.Name)
	require.Equal(t, int64(64<<20), r.Device.Size)
	require.Equal(t, want, r.Volume.DataWritten, "file data, in whole blocks")
	require.NotZero(t, r.Volume.MetadataWritten+r.Volume.JournalWritten, "sync commits")
	require.Equal(t, r.Volume.written()-at.Volume.written(), int64(r.Total.BytesWritten-at.Total.BytesWritten),
		"what the lanes moved is what the volume sent")
	require.Equal(t, r.Device.Queues, len(r.Queues))
	require.Equal(t, r.Total.Commands, r.Total.Completions)
	require.Zero(t, r.Total.Errors+r.Total.Timeouts+r.Total.Spurious+r.Total.Rejected)
	text := p.ok("stat", mnt)
	require.Contains(t, text, "simulated")
	require.Contains(t, text, "SQ doorbells")

	require.Empty(t, p.ok("umount", mnt))
	require.False(t, p.mounted(mnt))
	fsck(t, img)
	p.eventually("the daemon's end", func() bool { return gone(r.PID) })
	require.Empty(t, p.leftovers(mnt))

	p.ok("mount", "-o", "ro,noatime,nosuid", img, mnt)
	tool(t, "diff", "-r", "--no-dereference", src, filepath.Join(mnt, "src"))
	for i := range 200 {
		st, err := os.Stat(filepath.Join(mnt, "src", itoa(i)))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600+i%8), st.Mode().Perm())
	}
	require.Error(t, os.WriteFile(filepath.Join(mnt, "x"), nil, 0o600), "read-only")
	r, err = p.stat(mnt)
	require.NoError(t, err)
	require.True(t, r.ReadOnly)
	require.GreaterOrEqual(t, r.Volume.DataRead, want)
	p.ok("umount", mnt)
	fsck(t, img)
}

// TestImageOfAnySize fills an image whose last bytes are no whole block, as truncate -s 20MB makes them.
func TestImageOfAnySize(t *testing.T) {
	p := newPlace(t)
	mnt := p.mkdir("mnt")
	img := p.path("image")
	require.NoError(t, os.WriteFile(img, nil, 0o600))
	require.NoError(t, os.Truncate(img, 20_000_300))
	tool(t, "mkfs.ext4", "-q", "-F", "-b", "1024", "-m", "0", img)
	p.ok("mount", img, mnt)
	require.ErrorIs(t, os.WriteFile(filepath.Join(mnt, "f"), make([]byte, 20<<20), 0o644), unix.ENOSPC)
	p.ok("umount", mnt)
	fsck(t, img)
	st, err := os.Stat(img)
	require.NoError(t, err)
	require.Equal(t, int64(20_000_300), st.Size())
}

func (v volumeReport) written() int64 { return v.DataWritten + v.MetadataWritten + v.JournalWritten }

func TestGeometries(t *testing.T) {
	p := newPlace(t)
	mnt := p.mkdir("mnt")
	for _, c := range []struct {
		options string
		mkfs    []string
		lanes   int
		lba     int64
	}{
		{"lanes=1,depth=1", nil, 1, 512},
		{"lanes=3,lba=4096", nil, 3, 4096},
		{"lba=1024,depth=7", []string{"-b", "1024"}, 0, 1024},
		{"lanes=20,cache=1M", []string{"-b", "2048"}, 20, 512},
	} {
		t.Run(c.options, func(t *testing.T) {
			img := p.image("image", 32, c.mkfs...)
			p.ok("mount", "-o", c.options, img, mnt)
			require.NoError(t, os.WriteFile(filepath.Join(mnt, "f"), make([]byte, 3<<20+1), 0o644))
			r, err := p.stat(mnt)
			require.NoError(t, err)
			if c.lanes > 0 {
				require.Equal(t, c.lanes, r.Device.Queues)
			}
			require.Equal(t, c.lba, r.Device.BlockSize)
			p.ok("umount", mnt)
			fsck(t, img)
		})
	}
}

func TestRelativeNamesAndLinks(t *testing.T) {
	p := newPlace(t)
	p.image("image", 32)
	real := p.mkdir("real dir")
	require.NoError(t, os.Symlink("real dir", p.path("link")))
	p.ok("mount", "image", "link")
	require.True(t, p.mounted(real))
	require.Contains(t, p.ok("stat", "real dir"), p.path("image"))
	p.ok("umount", "./link/")
	require.False(t, p.mounted(real))
}

func TestLogFile(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	p.ok("mount", "-o", "log=daemon.log", img, mnt)
	p.ok("umount", mnt)
	b, err := os.ReadFile(p.path("daemon.log"))
	require.NoError(t, err)
	require.Contains(t, string(b), "msg=mounted")
	require.Contains(t, string(b), "msg=unmounted")
	_, said, err := p.run("mount", "-o", "depth=2000,lanes=64,log=other.log", img, mnt)
	require.NoError(t, err, said)
	require.Contains(t, said, "has 1023 commands in flight on a queue pair at most, not the 2000 that depth= asks for")
	p.ok("umount", mnt)
	b, err = os.ReadFile(p.path("other.log"))
	require.NoError(t, err)
	require.Contains(t, string(b), "depth= asks for")
	require.NotContains(t, string(b), "lanes= asks for")
	require.Contains(t, p.fails("mount", "-o", "log=none/x", img, mnt), `none/x": no such file or directory`)
	before := sum(t, img)
	require.Contains(t, p.fails("mount", "-o", "log="+img, img, mnt), "it is a device: name a file of its own")
	require.Contains(t, p.fails("mount", "--foreground", "-o", "log="+img, img, mnt), "it is a device: name a file of its own")
	other, disk := p.image("other", 32), p.path("disk")
	require.NoError(t, os.WriteFile(disk, make([]byte, 4<<20), 0o600))
	partitioned(t, disk, "2048,2048")
	for _, i := range []string{other, disk} {
		before := sum(t, i)
		require.Contains(t, p.fails("mount", "-o", "log="+i, img, mnt), "it is the image of a disk or of a file system: name a file of its own")
		require.Equal(t, before, sum(t, i))
	}
	require.Equal(t, before, sum(t, img))
}

// TestLogFIFO has a FIFO as the log. Without a reader its opening waited for ever, and the command with it.
func TestLogFIFO(t *testing.T) {
	p := newPlace(t)
	img, mnt, fifo := p.image("image", 32), p.mkdir("mnt"), p.path("fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.Contains(t, p.fails("mount", "-o", "log="+fifo, img, mnt), "nobody reads this FIFO: start its reader first")
	require.Contains(t, p.fails("mount", "--foreground", "-o", "log="+fifo, img, mnt), "nobody reads this FIFO: start its reader first")

	reader, err := os.OpenFile(fifo, os.O_RDWR, 0) // with a writer, so that it does not end
	require.NoError(t, err)
	defer reader.Close()
	p.ok("mount", "-o", "log="+fifo, img, mnt)
	p.ok("umount", mnt)
	require.NoError(t, reader.SetReadDeadline(time.Now().Add(time.Minute)))
	var said []byte
	for !bytes.Contains(said, []byte("msg=unmounted")) {
		b := make([]byte, 4096)
		n, err := reader.Read(b)
		require.NoError(t, err, string(said))
		said = append(said, b[:n]...)
	}
	require.Contains(t, string(said), "msg=mounted")
}

func TestIdentify(t *testing.T) {
	p := newPlace(t)
	img, mnt := p.image("image", 32), p.mkdir("mnt")
	out := p.ok("identify", img)
	for _, want := range []string{"LaneFS software controller", "simulated", "MDTS", "namespace", "65536 blocks of 512 bytes (32 MiB)", "in use"} {
		require.Contains(t, out, want)
	}
	require.Contains(t, p.ok("identify", "--lba", "4096", img), "8192 blocks of 4096 bytes")
	var id identity
	require.NoError(t, json.Unmarshal([]byte(p.ok("identify", "--json", "--gpu", "host", "--ring", "gpu", img)), &id))
	require.Equal(t, id.Serial, id.Ring.Serial)
	require.NotEmpty(t, id.Namespaces[0].Formats)
	require.Contains(t, p.fails("identify", "--ring", "bell", img), "want cpu or gpu")
	p.ok("mount", img, mnt)
	require.Contains(t, p.fails("identify", img), "in use")
	p.ok("umount", mnt)
}

func TestVersionAndDoctor(t *testing.T) {
	p := newPlace(t)
	require.Equal(t, "lanefs "+release+"\n", p.ok("version"))
	require.Contains(t, p.ok("doctor"), "ok    FUSE")
	require.Contains(t, p.ok("doctor", "--json"), `"what": "host runtime"`)
}
