package softctl

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lanefs/lanefs/blockdev/blockdevtest/looptest"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, nil, 0o600))
		require.NoError(t, os.Truncate(p, size))
		return p
	}
	good := file("good", 1<<20)
	for _, tc := range []struct {
		name string
		path string
		opt  Options
		want string
	}{
		{"missing", filepath.Join(dir, "none"), Options{}, `none": no such file`},
		{"directory", dir, Options{}, "neither a regular file nor a block device"},
		{"device", "/dev/null", Options{}, "neither a regular file nor a block device"},
		{"empty", file("empty", 0), Options{}, "is empty"},
		{"less than a block", file("short", 511), Options{}, "has 511 bytes, less than one block of 512"},
		{"less than a large block", file("shorter", 4095), Options{BlockSize: 4096}, "has 4095 bytes, less than one block of 4096"},
		{"too many parts", file("small", 1024), Options{Namespaces: 3}, "cannot be cut into 3"},
		{"second image missing", good, Options{Images: []string{filepath.Join(dir, "none")}}, "none"},
		{"the same image twice", good, Options{Images: []string{good}}, "in use"},
		{"block size", good, Options{BlockSize: 513}, "block size 513"},
		{"block size 8192", good, Options{BlockSize: 8192}, "block size 8192"},
		{"transfer", good, Options{MaxTransfer: 4096}, "maximum transfer 4096"},
		{"queues", good, Options{Queues: 70000}, "70000 I/O queues"},
		{"depth", good, Options{Depth: 1}, "queue depth 1"},
		{"stride", good, Options{Stride: 16}, "doorbell stride 16"},
		{"namespaces", good, Options{Namespaces: -1}, "-1 namespaces"},
		{"serial", good, Options{Serial: "123456789012345678901"}, "at most 20"},
		{"model", good, Options{Model: "caf\u00e9"}, "printable ASCII"},
		{"version", good, Options{Version: 3}, "version 0x3"},
		{"latency", good, Options{Latency: -1}, "negative"},
		{"ready delay", good, Options{ReadyDelay: 1 << 40}, "ready delay"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Open(tc.path, tc.opt)
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	c, err := Open(good, Options{}) // none of the refusals kept a lock
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// TestNoMedium: a device without bytes cannot be made larger, as an image can.
func TestNoMedium(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	dev, _ := looptest.Attach(t, path, "-o", "4096")
	_, err := Open(dev, Options{})
	require.EqualError(t, err, `device "`+dev+`" has no medium, or an empty one; losetup --list shows its file, losetup `+dev+` FILE gives it one`)
}

// TestImageImmutable: the error names what helps; permissions would not. To read it nothing is needed.
func TestImageImmutable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))
	if out, err := exec.Command("chattr", "+i", path).CombinedOutput(); err != nil {
		t.Skipf("needs root, and attributes of files in %s: %s", filepath.Dir(path), out)
	}
	defer func() { require.NoError(t, exec.Command("chattr", "-i", path).Run()) }()
	_, err := Open(path, Options{})
	require.ErrorContains(t, err, "cannot be opened for writing (mount and raw take it read-only with -o ro, bench and prove without --destroy; or take its attribute i away with chattr -i "+path+"): operation not permitted")
	c, err := Open(path, Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// TestImageWithRemainder: the bytes beyond the last whole block are no part of the namespace, and stay as they are.
func TestImageWithRemainder(t *testing.T) {
	for _, bs := range []int{512, 4096} {
		p := newImage(t, int64(4*bs+300))
		before := bytes.Repeat([]byte{0x5a}, 4*bs+300)
		require.NoError(t, os.WriteFile(p, before, 0o600))
		h := newHostOn(t, p, Options{BlockSize: bs}).enable()
		b, st := h.identify(0, 1, 0)
		require.Equal(t, success, st)
		require.Equal(t, uint64(4), binary.LittleEndian.Uint64(b), "NSZE")
		q := h.queue(1, 16)
		_, at := h.alloc(2 * bs)
		h.expect(success, q, h.move(opWrite, 3, 1, at))
		h.expect(lbaOutOfRange, q, h.move(opWrite, 3, 2, at))
		after, err := os.ReadFile(p)
		require.NoError(t, err)
		clear(before[3*bs : 4*bs])
		require.True(t, bytes.Equal(before, after))
	}
}

func TestImageIsLocked(t *testing.T) {
	p := newImage(t, 1<<20)
	c, err := Open(p, Options{})
	require.NoError(t, err)
	_, err = Open(p, Options{})
	require.EqualError(t, err, `image "`+p+`" is in use by another LaneFS or program; unmount it there first`)
	_, err = Open(p, Options{ReadOnly: true})
	require.ErrorContains(t, err, "in use")
	require.NoError(t, c.Close())
	r, err := Open(p, Options{ReadOnly: true})
	require.NoError(t, err)
	_, err = Open(p, Options{})
	require.ErrorContains(t, err, "in use")
	require.NoError(t, r.Close())
}

func TestImageOnLoopDevice(t *testing.T) {
	p := newImage(t, 1<<20)
	dev, detach := looptest.Attach(t, p)
	_, err := Open(p, Options{})
	require.ErrorContains(t, err, dev)

	out, err := exec.Command("blockdev", "--setro", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, err = Open(dev, Options{})
	require.ErrorIs(t, err, unix.EROFS)
	c, err := Open(dev, Options{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	out, err = exec.Command("blockdev", "--setrw", dev).CombinedOutput()
	require.NoError(t, err, "%s", out)

	// The loop device is itself a block device to serve from.
	h := newHostOn(t, dev, Options{BlockSize: 4096}).enable()
	q := h.queue(1, 16)
	b, at := h.alloc(8192)
	random(4, b)
	h.expect(success, q, rw(1, 1, 0, 2).prp(at, at+4096))
	h.expect(success, q, rw(8, 1, 1, 1))
	h.expect(success, q, cmdOf(0, 1))
	h.expect(success, q, rw(2, 1, 0, 2).prp(at, at+4096))
	require.Equal(t, make([]byte, 4096), b[4096:])
	require.NoError(t, h.c.Close())
	detach()
	got, err := os.ReadFile(p)
	require.NoError(t, err)
	require.Equal(t, b, got[:8192])
}

func TestIdentityIsStable(t *testing.T) {
	p := newImage(t, 1<<20)
	var ids [][]byte
	for range 2 {
		h := newHostOn(t, p, Options{}).enable()
		b, _ := h.identify(0, 1, 0)
		ids = append(ids, append([]byte{}, b[104:120]...))
		require.NoError(t, h.c.Close())
	}
	require.Equal(t, ids[0], ids[1])
}

func TestMapRefuses(t *testing.T) {
	h := newHost(t, Options{})
	m := newMemory(t, 16384)
	for _, r := range [][2]int64{{0, 0}, {0, -4096}, {-4096, 4096}, {1, 4096}, {0, 4097}, {0, 20480}, {16384, 4096}, {8192, 12288}, {1 << 62, 1 << 62}} {
		_, err := h.c.Map(m, r[0], r[1])
		require.Error(t, err, "%v", r)
	}
	a, err := h.c.Map(m, 4096, 8192)
	require.NoError(t, err)
	b, err := h.c.Map(m, 4096, 8192)
	require.NoError(t, err)
	require.Greater(t, uint64(b), uint64(a)+8192, "a gap")
	require.Error(t, h.c.Unmap(a+4096))
	require.NoError(t, h.c.Unmap(a))
	require.Error(t, h.c.Unmap(a))
	require.False(t, h.c.dma.mapped(uint64(a), 1))
	require.True(t, h.c.dma.mapped(uint64(b), 8192))
	require.False(t, h.c.dma.mapped(uint64(b), 8193))
	require.False(t, h.c.dma.mapped(uint64(b)-1, 1))
}

// TestNoSpace fills the file system that a sparse image is on.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs root, to mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	path := filepath.Join(dir, "image")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, testSize))
	var log bytes.Buffer
	h := newHostOn(t, path, Options{Log: textLog(&log)}).enable()
	q := h.queue(1, 16)
	b, at := h.alloc(512 << 10)
	random(1, b)
	h.expect(success, q, h.move(1, 0, 1024, at))
	h.expect(success, q, h.move(1, 1024, 512, at))
	h.expect(capacityExceeded, q, h.move(1, 2048, 1024, at))
	fua := h.move(1, 2048, 1024, at)
	h.expect(capacityExceeded, q, fua.dw(12, fua[12]|1<<30))
	h.expect(success, q, cmdOf(opFlush, 1))
	require.Contains(t, log.String(), "no space left for the image")
	h.expect(success, q, rw(8, 1, 0, 4096)) // space is given back
	h.expect(success, q, h.move(1, 8192, 1024, at))
	require.NoError(t, h.c.Close())
}
